"""The tables and their JSON, in RocketMQ's shapes."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_broker.delivery.delay.progress import DelayOffsets
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup, SubscriptionGroups
from aerobee_broker.metadata.table import DataVersion
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from support.clock.manual_clock import ManualClock

CLOCK = ManualClock(now_ms=1_000)


def topics(*configs: TopicConfig) -> Topics:
    table = Topics(CLOCK)
    for config in configs:
        table.put(config)
    return table


def loaded_groups(**groups: Any) -> SubscriptionGroups:
    """From a JSON file of such groups."""
    loaded = SubscriptionGroups(CLOCK)
    loaded.load({"subscriptionGroupTable": groups})
    return loaded


def stored(group: SubscriptionGroup) -> dict[str, Any]:
    """Its JSON, from which the same group is loaded."""
    table = SubscriptionGroups(CLOCK)
    table.put(group)
    groups = table.to_json()["subscriptionGroupTable"]
    assert loaded_groups(**groups).get("g") == group
    return dict(groups["g"])


@pytest.fixture
def offsets() -> ConsumerOffsets:
    return ConsumerOffsets(CLOCK)


def test_topics_have_rocketmqs_shape() -> None:
    table = topics(TopicConfig("flights", 8, 4, 6, attributes={"message.type": "FIFO"}))
    assert table.to_json() == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1_000},
        "topicConfigTable": {
            "flights": {
                "topicName": "flights",
                "readQueueNums": 8,
                "writeQueueNums": 4,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
                "attributes": {"message.type": "FIFO"},
            }
        },
    }


def test_topics_are_loaded_from_their_json() -> None:
    table = topics(TopicConfig("a", 1, 2, 4, 3, order=True), TopicConfig("b", 3, 3))
    loaded = Topics(CLOCK)
    loaded.load(table.to_json())
    assert (loaded.all(), loaded.version) == (table.all(), table.version)


def test_putting_an_equal_topic_changes_no_version() -> None:
    table = topics(TopicConfig("a", 1, 1))
    before = table.version
    assert table.put(TopicConfig("a", 1, 1)) is False
    assert table.version == before == DataVersion(0, 1_000, 1)


def test_changed_keys_lists_rows_put_or_removed_after_a_revision() -> None:
    table = topics(TopicConfig("a", 1, 1), TopicConfig("b", 1, 1), TopicConfig("c", 1, 1))
    seen = table.revision
    table.put(TopicConfig("b", 2, 2))
    assert table.remove("a")
    assert not table.remove("a")
    table.put(TopicConfig("b", 3, 3))
    assert table.changed_keys(seen) == ["a", "b"], "each once, the last change last"
    assert table.changed_keys(table.revision) == []


def test_changed_keys_are_unknown_after_all_rows_were_replaced() -> None:
    table = topics(TopicConfig("a", 1, 1))
    seen = table.revision
    table.take(table.to_json())
    assert table.changed_keys(seen) is None
    assert table.changed_keys(table.revision) == []


def test_removed_rows_are_not_remembered_for_ever() -> None:
    table = topics()
    first = table.revision
    for number in range(5_000):
        table.put(TopicConfig(f"t{number}", 1, 1))
        seen = table.revision
        table.remove(f"t{number}")
        assert table.changed_keys(seen) == [f"t{number}"]
    assert table.changed_keys(first) is None
    assert len(table._changed_at) < 2_048


def test_groups_have_rocketmqs_defaults() -> None:
    group = stored(SubscriptionGroup("g"))
    assert (group["retryMaxTimes"], group["retryQueueNums"]) == (16, 1)
    assert group["consumeEnable"] is True
    assert (group["whichBrokerWhenConsumeSlowly"], group["consumeTimeoutMinute"]) == (1, 15)
    assert group["groupRetryPolicy"] == {"type": "CUSTOMIZED", "customizedRetryPolicy": None}


def test_retry_delays_start_at_entry_3_of_rocketmqs_policy() -> None:
    """Its customised policy gives retry n entry n + 2."""
    group = stored(SubscriptionGroup("g", retry_max_times=2, retry_delays_ms=(300, 700)))
    assert group["groupRetryPolicy"]["customizedRetryPolicy"]["next"] == [300, 300, 300, 700]


def test_an_exponential_retry_policy_has_rocketmqs_shape() -> None:
    policy = ExponentialRetryPolicy(1_000, 60_000, 3)
    assert stored(SubscriptionGroup("g", exponential_retry=policy))["groupRetryPolicy"] == {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1_000, "max": 60_000, "multiplier": 3},
    }


@pytest.mark.parametrize(
    "policy", [{"type": "EXPONENTIAL"}, {"type": "EXPONENTIAL", "exponentialRetryPolicy": None}]
)
def test_an_exponential_retry_policy_without_numbers_has_rocketmqs(policy: dict[str, Any]) -> None:
    group = loaded_groups(g={"groupRetryPolicy": policy}).get("g")
    assert group is not None
    assert group.exponential_retry == ExponentialRetryPolicy(5_000, 7_200_000, 2)


@pytest.mark.parametrize("order", ConsumeOrder)
def test_the_order_of_a_group_is_kept_beside_rocketmqs_boolean(order: ConsumeOrder) -> None:
    group = stored(SubscriptionGroup("g", consume_order=order))
    assert group["consumeMessageOrderly"] is (order is ConsumeOrder.ON)


@pytest.mark.parametrize(
    ("orderly", "order"), [(True, ConsumeOrder.ON), (False, ConsumeOrder.AUTO)]
)
def test_a_store_with_the_boolean_alone(orderly: bool, order: ConsumeOrder) -> None:
    """As RocketMQ and version 0.1 write it."""
    loaded = loaded_groups(g={"consumeMessageOrderly": orderly})
    assert loaded.get("g") == SubscriptionGroup("g", consume_order=order)


def test_group_is_loaded_with_defaults_for_missing_keys() -> None:
    loaded = SubscriptionGroups(CLOCK)
    loaded.load({"subscriptionGroupTable": {"g": {}}, "forbiddenTable": {"g": {"t": 4}}})
    assert loaded.get("g") == SubscriptionGroup("g")
    assert loaded.to_json()["forbiddenTable"] == {"g": {"t": 4}}


def test_offsets_have_rocketmqs_shape(offsets: ConsumerOffsets) -> None:
    offsets.commit("g", "flights", 0, 7)
    offsets.commit("g", "flights", 3, 1)
    offsets.commit("h", "%RETRY%h", 0, 2)
    content = offsets.to_json()
    assert content["offsetTable"] == {"flights@g": {"0": 7, "3": 1}, "%RETRY%h@h": {"0": 2}}
    loaded = ConsumerOffsets(CLOCK)
    loaded.load(content)
    assert loaded.of("g", "flights") == {0: 7, 3: 1}
    assert loaded.topics_of("h") == ["%RETRY%h"]


def test_commit_moves_an_offset_backwards_too(offsets: ConsumerOffsets) -> None:
    offsets.commit("g", "t", 0, 7)
    offsets.commit("g", "t", 0, 3)
    assert offsets.get("g", "t", 0) == 3


def test_reset_blocks_commits_for_a_minute_at_most() -> None:
    clock = ManualClock()
    table = ConsumerOffsets(clock)
    table.reset("g", "t", 0, 2)
    clock.advance(59_999)
    table.commit("g", "t", 0, 9)
    assert table.get("g", "t", 0) == 2
    clock.advance(1)
    table.commit("g", "t", 0, 9)
    assert table.get("g", "t", 0) == 9
    assert table.take_reset("g", "t", 0) is None


def test_commit_under_way_does_not_overwrite_a_reset(offsets: ConsumerOffsets) -> None:
    offsets.commit("g", "t", 0, 7)
    offsets.reset("g", "t", 0, 2)
    offsets.commit("g", "t", 0, 8)
    offsets.commit("g", "t", 1, 5)
    assert (offsets.get("g", "t", 0), offsets.get("g", "t", 1)) == (2, 5)
    assert offsets.take_reset("g", "t", 0) == 2
    assert offsets.take_reset("g", "t", 0) is None
    offsets.commit("g", "t", 0, 3)
    assert offsets.get("g", "t", 0) == 3


def test_the_data_version_counts_500_commits_as_one(offsets: ConsumerOffsets) -> None:
    for offset in range(1, 1_001):
        offsets.commit("g", "t", 0, offset)
    assert (offsets.version.counter, offsets.revision) == (2, 1_000)


def test_repeated_commit_is_no_change(offsets: ConsumerOffsets) -> None:
    offsets.commit("g", "t", 0, 7)
    before = offsets.revision
    offsets.commit("g", "t", 0, 7)
    assert offsets.revision == before


def test_removed_topics_and_groups_lose_their_offsets(offsets: ConsumerOffsets) -> None:
    for group, topic in (("g", "t"), ("g", "u"), ("h", "t"), ("h", "u")):
        offsets.commit(group, topic, 0, 1)
    offsets.remove_topic("t")
    offsets.remove_group("h")
    assert offsets.to_json()["offsetTable"] == {"u@g": {"0": 1}}


def test_a_group_that_leaves_a_topic_loses_its_offsets_there(offsets: ConsumerOffsets) -> None:
    for group, topic in (("g", "t"), ("g", "u"), ("h", "t")):
        offsets.commit(group, topic, 0, 1)
    offsets.reset("g", "t", 0, 5)
    offsets.remove("g", "t")
    assert offsets.take_reset("g", "t", 0) is None
    assert offsets.to_json()["offsetTable"] == {"u@g": {"0": 1}, "t@h": {"0": 1}}
    before = offsets.revision
    offsets.remove("g", "t")
    assert offsets.revision == before


def test_delay_offsets_are_keyed_by_level() -> None:
    table = DelayOffsets(CLOCK)
    table.put(2, 40)
    table.put(18, 3)
    assert table.to_json()["offsetTable"] == {"3": 40, "19": 3}
    loaded = DelayOffsets(CLOCK)
    loaded.load(table.to_json())
    assert (loaded.get(2), loaded.get(18), loaded.get(0)) == (40, 3, 0)
