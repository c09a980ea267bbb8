"""Groups and topics on a full disk: what a consumer needs is made, and what an administrator asks
for is refused.
"""

from __future__ import annotations

from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness
from support.broker.tables import failing_disk, saved_rows
from support.codes import raises_code


async def test_a_consumer_s_new_group_needs_no_room_on_the_disk(harness: BrokerHarness) -> None:
    """It has default settings, and consuming makes room. The periodic save makes it durable."""
    groups, topics = harness.broker.groups, harness.broker.topics
    with failing_disk():
        group = await groups.for_client("new")
        assert groups.ready("new") == group == SubscriptionGroup("new")
        await groups.ensure_retry_topic(group)
        assert topics.ready("%RETRY%new") is not None
        assert "%RETRY%new" in harness.announced[-1]
        assert "new" not in saved_rows(harness.tables.saved_groups)
        await harness.broker.save_tables()  # a failure is logged
    await harness.broker.save_tables()
    assert "new" in saved_rows(harness.tables.saved_groups)
    assert "%RETRY%new" in saved_rows(harness.tables.saved_topics)


async def test_an_administrator_s_change_needs_room_on_the_disk(harness: BrokerHarness) -> None:
    group = SubscriptionGroup("g", retry_max_times=3)
    with failing_disk():
        for change in (
            harness.broker.groups.put(group),
            harness.broker.groups.for_client("g"),  # its settings are not durable
            harness.broker.topics.put(TopicConfig("t", 4, 4)),
            harness.broker.topics.put(TopicConfig("%RETRY%g", 2, 2)),
        ):
            with raises_code(Code.DISK_FULL):
                await change
    assert await harness.broker.groups.for_client("g") == group
    assert "g" in saved_rows(harness.tables.saved_groups)
