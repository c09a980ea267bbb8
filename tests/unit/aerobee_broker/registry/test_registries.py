"""The topic and group registries: creation, changes, deletion, durability, publishing."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aerobee_broker.delivery.admin import TopicUpdate
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.status import Code, MqError
from support.broker.harness import Begin, BrokerHarness, message
from support.broker.tables import failing_disk, saved_rows
from support.codes import raises_about, raises_code

GOOD = TopicConfig("t", 4, 4)


def hold_writer(table: PersistentTable) -> asyncio.Event:
    """Holds the writes of a table until the event is set."""
    writer, gate = table._writer, asyncio.Event()

    async def write(function: Callable[[], Any]) -> Any:
        await gate.wait()
        return await writer(function)

    table._writer = write
    return gate


def hold_announcements(harness: BrokerHarness) -> asyncio.Event:
    """Holds the registrations with the name servers until the event is set."""
    gate = asyncio.Event()

    async def announce() -> list[str]:
        await gate.wait()
        return []

    harness.broker.topics._announce = announce
    return gate


# ---- topics ----


async def test_put_answers_whether_the_topic_is_new(harness: BrokerHarness) -> None:
    put = harness.broker.topics.put
    assert [(await put(GOOD)).created, (await put(GOOD)).created] == [True, False]
    assert not (await put(replace(GOOD, write_queue_count=2))).created
    assert harness.broker.topics.get("t").write_queue_count == 2


async def test_put_only_new_leaves_an_existing_topic(harness: BrokerHarness) -> None:
    other = replace(GOOD, write_queue_count=2)
    put = harness.broker.topics.put
    assert [(await put(topic, only_new=True)).created for topic in (GOOD, other)] == [True, False]
    assert harness.broker.topics.get("t") == GOOD


async def update(
    harness: BrokerHarness, *named: str, dry_run: bool = False, force: bool = False, **values: Any
) -> TopicUpdate:
    given = replace(TopicConfig("t", 0, 0, 0), **values)
    change = harness.broker.administration.update_topic
    return await change(given, named or tuple(values), dry_run=dry_run, force=force)


async def test_an_update_changes_what_it_names(harness: BrokerHarness) -> None:
    old = replace(GOOD, order=True, attributes={"message.type": "FIFO", "reserve.time": "-1"})
    await harness.broker.topics.put(old)
    would = await update(harness, read_queue_count=8, dry_run=True)
    assert (would.before, would.after) == (old, replace(old, read_queue_count=8))
    assert harness.broker.topics.get("t") == old
    assert (await update(harness, read_queue_count=8)).after == harness.broker.topics.get("t")
    merged = {"message.type": "DELAY", "reserve.time": ""}
    after = (await update(harness, attributes=merged)).after
    assert after == replace(old, read_queue_count=8, attributes={"message.type": "DELAY"})
    assert "t" in harness.announced[-1]


@pytest.mark.parametrize(
    ("invalid", "code"),
    [
        (replace(GOOD, attributes={"message.type": "SLOW"}), Code.INVALID_PARAMETER),
        (replace(GOOD, read_queue_count=0), Code.INVALID_PARAMETER),
        (replace(GOOD, topic="TBW102"), Code.NO_PERMISSION),
    ],
)
async def test_a_dry_run_checks_a_missing_topic_as_its_creation_does(
    harness: BrokerHarness, invalid: TopicConfig, code: Code
) -> None:
    change = harness.broker.administration.update_topic
    before = harness.tables.topics.all()
    for call in (
        change(invalid, (), dry_run=True, force=False, allow_missing=True),
        harness.broker.topics.put(invalid, only_new=True),
    ):
        with raises_code(code):
            await call
    would = await change(GOOD, (), dry_run=True, force=False, allow_missing=True)
    assert (would.before, would.after) == (None, GOOD)
    assert harness.tables.topics.all() == before
    with raises_code(Code.TOPIC_NOT_EXIST):
        await change(GOOD, (), dry_run=False, force=False, allow_missing=True)


@pytest.mark.parametrize(
    ("topic", "named", "code"),
    [
        ("t", {"read_queue_count": 0}, Code.INVALID_PARAMETER),
        ("t", {"attributes": {"message.type": "SLOW"}}, Code.INVALID_PARAMETER),
        ("t", {"colour": "red"}, Code.INVALID_PARAMETER),
        ("t", {"topic": "u"}, Code.INVALID_PARAMETER),
        ("u", {"permission": 4}, Code.TOPIC_NOT_EXIST),
        ("TBW102", {"permission": 4}, Code.NO_PERMISSION),
    ],
)
async def test_an_invalid_update_changes_nothing(
    harness: BrokerHarness, topic: str, named: dict[str, Any], code: Code
) -> None:
    await harness.broker.topics.put(GOOD)
    before = harness.tables.topics.all()
    known = {name: value for name, value in named.items() if name not in ("colour", "topic")}
    with raises_code(code):
        await update(harness, *named, topic=topic, **known)
    assert harness.tables.topics.all() == before


async def test_messages_become_unreadable_by_force_only(
    harness: BrokerHarness, begin: Begin
) -> None:
    await harness.broker.topics.put(GOOD)
    await harness.broker.sending.sender.send([message("t", b"a", 3), message("t", b"b", 3)])
    # Queue 3 gets no more, and can be read.
    assert (await update(harness, write_queue_count=2)).unreadable == {}
    assert (await update(harness, read_queue_count=2, dry_run=True)).unreadable == {3: 2}
    with raises_about(MqError, "read_queue_count"):
        await update(harness, read_queue_count=2)
    assert harness.broker.topics.get("t").read_queue_count == 4
    assert (await update(harness, read_queue_count=2, force=True)).unreadable == {3: 2}
    # A start adopts what the log has and topics.json lacks, but not what was given up.
    second = await begin()
    assert second.broker.topics.get("t").read_queue_count == 2
    assert (await update(second, read_queue_count=4)).unreadable == {}
    assert await second.bodies("t", [3]) == [b"a", b"b"]


async def test_queues_that_nobody_would_read_get_no_messages(harness: BrokerHarness) -> None:
    await harness.broker.topics.put(GOOD)
    with raises_about(MqError, "read_queue_count"):
        await update(harness, write_queue_count=6)
    assert (await update(harness, write_queue_count=6, read_queue_count=6)).unreadable == {}


async def test_put_returns_once_the_topic_is_published(harness: BrokerHarness) -> None:
    await harness.broker.topics.put(GOOD)
    assert "t" in saved_rows(harness.tables.saved_topics)
    assert "t" in harness.announced[-1]


async def test_a_change_during_a_publication_is_published_too(harness: BrokerHarness) -> None:
    saved = harness.tables.saved_topics
    gate = hold_writer(saved)
    first = asyncio.create_task(harness.broker.topics.put(GOOD))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(harness.broker.topics.put(replace(GOOD, read_queue_count=9)))
    await asyncio.sleep(0.01)
    gate.set()
    await second
    table = saved_rows(saved)
    assert table["t"]["readQueueNums"] == 9
    await first


async def test_put_answers_with_unreachable_name_servers(harness: BrokerHarness) -> None:
    harness.unreachable = ["10.0.0.9:9876"]
    put = await harness.broker.topics.put(GOOD)
    assert put.unreachable_namesrvs == ["10.0.0.9:9876"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "a/b"}, Code.INVALID_PARAMETER),
        ({"topic": "TBW102"}, Code.NO_PERMISSION),
        ({"topic": "rmq_sys_x"}, Code.NO_PERMISSION),
        ({"topic": "broker-a"}, Code.NO_PERMISSION),
        ({"topic": "DefaultCluster"}, Code.NO_PERMISSION),
        ({"read_queue_count": 0}, Code.INVALID_PARAMETER),
        ({"write_queue_count": 65_537}, Code.INVALID_PARAMETER),
        ({"permission": 0}, Code.INVALID_PARAMETER),
        ({"permission": 16}, Code.INVALID_PARAMETER),
        ({"attributes": {"message.type": "SLOW"}}, Code.INVALID_PARAMETER),
        ({"attributes": {"message.type": "MIXED"}}, Code.INVALID_PARAMETER),
        ({"attributes": {"cleanup.policy": "COMPACTION"}}, Code.INVALID_PARAMETER),
        ({"attributes": {"colour": "red"}}, Code.INVALID_PARAMETER),
        *(
            ({"attributes": {"reserve.time": hours}}, Code.INVALID_PARAMETER)
            for hours in ("0", "-2", "1.5", "87601", "", "24h")
        ),
        (
            {"attributes": {"reserve.time": "24", "message.type": "LITE"}},
            Code.INVALID_PARAMETER,
        ),
    ],
)
async def test_an_invalid_topic_is_refused(
    harness: BrokerHarness, fields: dict[str, Any], code: Code
) -> None:
    before = harness.tables.topics.all()
    with raises_code(code):
        await harness.broker.topics.put(replace(GOOD, **fields))
    assert harness.tables.topics.all() == before


async def test_a_topic_that_a_send_created_takes_one_type(harness: BrokerHarness) -> None:
    await harness.send("t", b"a")
    announced = len(harness.announced)
    for asked, code in (("SLOW", Code.INVALID_PARAMETER), ("MIXED", Code.INVALID_PARAMETER)):
        with raises_code(code):
            await harness.broker.topics.specify_type("t", asked)
    assert await harness.broker.topics.specify_type("t", "FIFO") == "FIFO"
    assert len(harness.announced) == announced + 1
    assert await harness.broker.topics.specify_type("t", "NORMAL") == "FIFO"
    await harness.broker.topics.put(replace(GOOD, topic="plain"))
    assert await harness.broker.topics.specify_type("plain", "FIFO") == GOOD.message_type
    with raises_code(Code.TOPIC_NOT_EXIST):
        await harness.broker.topics.specify_type("unknown", "FIFO")


async def test_deleting_a_topic_deletes_its_queues_and_offsets(harness: BrokerHarness) -> None:
    await harness.send("t", b"a", b"b")
    harness.tables.offsets.commit("g", "t", 0, 1)
    assert await harness.broker.administration.delete_topic("t")
    assert not await harness.broker.administration.delete_topic("t")
    assert harness.tables.offsets.get("g", "t", 0) is None
    await harness.send("t", b"new")
    assert await harness.bodies("t") == [b"new"], "a recreated topic is empty"


async def test_a_send_during_a_deletion_recreates_the_topic(harness: BrokerHarness) -> None:
    """Before the deletion is durable and published."""
    await harness.send("t", b"old")
    deletion = asyncio.create_task(harness.broker.administration.delete_topic("t"))
    await asyncio.sleep(0)
    assert not deletion.done()
    await harness.send("t", b"new")
    assert await deletion
    assert await harness.bodies("t") == [b"new"]
    assert "t" in harness.announced[-1], "the recreated one is published"


@pytest.mark.parametrize("enabled", [False, True])
async def test_the_topic_of_traces_exists_if_the_option_says_so(
    begin: Begin, enabled: bool
) -> None:
    harness = await begin(traceTopicEnable=enabled)
    assert ("RMQ_SYS_TRACE_TOPIC" in harness.broker.topics.table) is enabled


async def test_a_start_keeps_the_settings_of_the_trace_topic(begin: Begin) -> None:
    harness = await begin(traceTopicEnable=True)
    topics = harness.broker.topics
    topic = topics.table.get("RMQ_SYS_TRACE_TOPIC")
    assert topic is not None
    changed = replace(topic, attributes={"reserve.time": "24"})
    topics.table.put(changed)
    topics.create_system_topics()
    assert topics.table.get("RMQ_SYS_TRACE_TOPIC") == changed


async def test_a_system_topic_cannot_be_deleted(harness: BrokerHarness) -> None:
    with raises_code(Code.NO_PERMISSION):
        await harness.broker.administration.delete_topic("TBW102")


async def test_every_send_waits_until_its_topic_is_published(harness: BrokerHarness) -> None:
    gate = hold_announcements(harness)
    sends = [asyncio.create_task(harness.send("new", b"x")) for _ in range(3)]
    await asyncio.sleep(1)
    assert not any(send.done() for send in sends)
    gate.set()
    assert [len(await send) for send in sends] == [1, 1, 1]


async def test_a_send_stores_nothing_once_its_topic_is_deleted(harness: BrokerHarness) -> None:
    """Deleted while it is being created: a message would bring it back at the next start."""
    gate = hold_announcements(harness)
    send = asyncio.create_task(harness.send("new", b"x"))
    await asyncio.sleep(1)
    deletion = asyncio.create_task(harness.broker.administration.delete_topic("new"))
    await asyncio.sleep(1)
    gate.set()
    with raises_code(Code.TOPIC_NOT_EXIST):
        await send
    assert await deletion
    assert "new" not in harness.store.topics()


@pytest.mark.parametrize("fast", [False, True])
async def test_a_send_stores_nothing_once_one_of_its_topics_is_deleted(
    harness: BrokerHarness, fast: bool
) -> None:
    """The send waits for the creation of another topic."""
    await harness.broker.topics.put(GOOD)
    gate = hold_announcements(harness)
    sender = harness.broker.sending.sender
    if fast:
        key = props.encode({props.UNIQUE_KEY: "u"})
        both = [NewMessage(topic, 0, b"x", key) for topic in (GOOD.topic, "new")]
        send: asyncio.Task[object] = asyncio.create_task(sender.send_fast(both))
    else:
        send = asyncio.create_task(
            sender.send([message(GOOD.topic, b"x", 0), message("new", b"x", 0)])
        )
    await asyncio.sleep(1)
    deletion = asyncio.create_task(harness.broker.administration.delete_topic(GOOD.topic))
    await asyncio.sleep(1)
    gate.set()
    with raises_code(Code.TOPIC_NOT_EXIST):
        await send
    assert await deletion
    assert GOOD.topic not in harness.store.topics()


async def test_a_topic_that_only_the_log_has_is_adopted(
    harness: BrokerHarness, begin: Begin
) -> None:
    await harness.broker.sending.sender.send([message("t", b"a", 3)])
    await harness.end()
    for path in (harness.store.path / "config").glob("topics.*"):
        path.unlink()
    second = await begin()
    assert await second.bodies("t", [3]) == [b"a"]


async def test_without_auto_creation_there_is_no_tbw102(
    harness: BrokerHarness, begin: Begin
) -> None:
    assert harness.broker.topics.get("TBW102").permission == 7
    second = await begin(autoCreateTopicEnable=False)
    assert "TBW102" not in second.tables.topics


async def test_a_topic_that_cannot_be_saved_is_refused(harness: BrokerHarness) -> None:
    with failing_disk():
        for _ in range(2):  # the second one finds the topic in the table
            with raises_code(Code.DISK_FULL):
                await harness.broker.topics.put(GOOD)
            with pytest.raises(MqError):
                await harness.send("t", b"a")
    announced = len(harness.announced)
    await harness.broker.topics.put(GOOD)
    assert "t" in saved_rows(harness.tables.saved_topics)
    assert len(harness.announced) == announced + 1


async def test_a_deleted_group_s_offsets_go_before_the_group(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.send("t", b"a")
    await harness.group("g")
    harness.tables.offsets.commit("g", "t", 0, 1)
    await harness.tables.saved_offsets.save()
    seen: list[bool] = []
    save = harness.tables.saved_groups.save

    async def look() -> None:
        offsets = saved_rows(harness.tables.saved_offsets)
        seen.append("t@g" in offsets)
        await save()

    monkeypatch.setattr(harness.tables.saved_groups, "save", look)
    assert await harness.broker.administration.delete_group("g", remove_offsets=True)
    assert seen == [False]


async def test_a_deletion_that_cannot_be_saved_removes_the_offsets(harness: BrokerHarness) -> None:
    await harness.send("t", b"a")
    await harness.group("g", retry_queue_count=0)
    harness.tables.offsets.commit("g", "t", 0, 1)
    with failing_disk(), pytest.raises(MqError):
        await harness.broker.administration.delete_group("g", remove_offsets=True)
    assert not await harness.broker.administration.delete_group("g", remove_offsets=True)
    assert harness.tables.offsets.get("g", "t", 0) is None


# ---- groups ----


async def test_a_group_s_update_changes_what_it_names(harness: BrokerHarness) -> None:
    groups = harness.broker.groups
    old = SubscriptionGroup("g", retry_delays_ms=(100,), attributes={"priority.factor": "100"})
    assert await groups.put(old)
    assert not await groups.put(SubscriptionGroup("g"), only_new=True)
    assert groups.get("g") == old
    given = SubscriptionGroup("g", retry_max_times=2)
    assert (await groups.update(given, ["retry_max_times"], dry_run=True))[1] != groups.get("g")
    await groups.update(given, ["retry_max_times"], dry_run=False)
    assert groups.get("g") == replace(old, retry_max_times=2)
    growing = SubscriptionGroup("g", exponential_retry=ExponentialRetryPolicy())
    with raises_code(Code.INVALID_PARAMETER):  # delays or an exponential retry
        await groups.update(growing, ["exponential_retry"], dry_run=False)
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        await groups.update(SubscriptionGroup("other"), ["consume_enable"], dry_run=False)
    assert groups.get("g") == replace(old, retry_max_times=2)


@pytest.mark.parametrize(
    ("name", "value"), [("team", "blue"), ("priority.factor", "50"), ("lite.sub.model", "Shared")]
)
async def test_a_group_s_attribute_without_effect_is_refused(
    harness: BrokerHarness, name: str, value: str
) -> None:
    with raises_code(Code.INVALID_PARAMETER, name):
        await harness.broker.groups.put(SubscriptionGroup("g", attributes={name: value}))


async def test_a_dry_run_checks_a_missing_group_as_its_creation_does(
    harness: BrokerHarness,
) -> None:
    groups = harness.broker.groups
    bound = SubscriptionGroup("g", attributes={"lite.bind.topic": "none"})
    for call in (
        groups.update(bound, (), dry_run=True, allow_missing=True),
        groups.put(bound, only_new=True),
    ):
        with raises_code(Code.TOPIC_NOT_EXIST):
            await call
    good = SubscriptionGroup("g", retry_max_times=2)
    assert await groups.update(good, (), dry_run=True, allow_missing=True) == (None, good)
    assert groups.table.get("g") is None


async def test_put_creates_the_retry_topic_of_a_group(harness: BrokerHarness) -> None:
    assert await harness.broker.groups.put(SubscriptionGroup("g", retry_queue_count=2))
    assert not await harness.broker.groups.put(SubscriptionGroup("g", retry_max_times=3))
    assert harness.broker.topics.get("%RETRY%g").read_queue_count == 2
    assert harness.broker.groups.get("g").retry_max_times == 3


async def test_every_use_of_a_group_waits_until_it_is_durable(harness: BrokerHarness) -> None:
    saved = harness.tables.saved_groups
    gate = hold_writer(saved)
    uses = [asyncio.create_task(harness.broker.groups.for_client("new")) for _ in range(3)]
    await asyncio.sleep(1)
    assert not any(use.done() for use in uses)
    gate.set()
    await asyncio.wait(uses[-1:])
    assert "new" in saved_rows(saved)
    assert [(await use).consumer_group for use in uses] == ["new"] * 3


async def test_the_next_use_of_an_unsaved_group_saves_it(harness: BrokerHarness) -> None:
    with failing_disk(errno.EIO):
        for _ in range(2):  # the second one finds the group in the table
            with raises_code(Code.SYSTEM_ERROR):
                await harness.broker.groups.for_client("new")
    await harness.broker.groups.for_client("new")
    assert "new" in saved_rows(harness.tables.saved_groups)
    assert harness.broker.groups.ready("new") is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"consumer_group": ""},
        {"consumer_group": "x" * 121},
        {"retry_max_times": -1},
        {"retry_queue_count": -1},
        {"retry_delays_ms": (-1,)},
        {"exponential_retry": ExponentialRetryPolicy(initial_ms=0)},
        {"exponential_retry": ExponentialRetryPolicy(initial_ms=2_000, max_ms=1_000)},
        {"exponential_retry": ExponentialRetryPolicy(max_ms=2**40)},
        {"exponential_retry": ExponentialRetryPolicy(multiplier=0)},
        {"exponential_retry": ExponentialRetryPolicy(multiplier=101)},
        {"exponential_retry": ExponentialRetryPolicy(), "retry_delays_ms": (1,)},
        {"retry_delays_ms": tuple(range(65))},
        {"retry_delays_ms": (2**40,)},
    ],
)
async def test_an_invalid_group_is_refused(harness: BrokerHarness, fields: dict[str, Any]) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        await harness.broker.groups.put(replace(SubscriptionGroup("g"), **fields))


async def test_deleting_a_group_may_leave_its_offsets(harness: BrokerHarness) -> None:
    await harness.send("t", b"a")
    for forget, left in ((False, 1), (True, None)):
        await harness.group("g")
        harness.tables.offsets.commit("g", "t", 0, 1)
        assert await harness.broker.administration.delete_group("g", remove_offsets=forget)
        assert harness.tables.offsets.get("g", "t", 0) == left
    assert not await harness.broker.administration.delete_group("g", remove_offsets=False)


async def test_a_system_group_cannot_be_deleted(harness: BrokerHarness) -> None:
    with raises_code(Code.NO_PERMISSION):
        await harness.broker.administration.delete_group("CID_RMQ_SYS_TRANS", remove_offsets=False)


async def test_topics_and_groups_survive_a_restart(harness: BrokerHarness, begin: Begin) -> None:
    await harness.broker.topics.put(replace(GOOD, attributes={"message.type": "FIFO"}))
    await harness.group("g", retry_max_times=2, retry_delays_ms=(5, 7))
    await harness.send("t", b"a", queue_id=2)
    harness.tables.offsets.commit("g", "t", 2, 1)
    second = await begin()
    assert second.broker.topics.get("t").attributes == {"message.type": "FIFO"}
    assert second.broker.groups.get("g").retry_delays_ms == (5, 7)
    assert second.tables.offsets.of("g", "t") == {2: 1}
