"""Pop: leases, settlements, time, restarts. Over a real store; time is made up."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.delivery.pop import selector
from aerobee_broker.delivery.pop.invisible_duration import InvisibleChange
from aerobee_broker.delivery.pop.lease_table import LeaseName, LeaseSet
from aerobee_broker.errors import InvalidParameter, StoreReadError
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.messages import ReadResult
from aerobee_wire import properties as props
from aerobee_wire.status import Code
from support.broker.harness import Parts
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, bodies, lease_set


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await Parts.begin(tmp_path)
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await parts.group(GROUP)
    yield parts
    await parts.end()


@pytest.fixture
def consumer(parts: Parts) -> PopConsumer:
    return PopConsumer(parts)


async def test_a_message_on_lease_is_given_to_nobody_else(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1", b"2", b"3")
    first, second = await consumer.pop(2), await consumer.pop(2)
    assert (bodies(first), bodies(second)) == ([b"1", b"2"], [b"3"])
    assert [one.attempt for one in first] == [1, 1]
    assert await consumer.pop() == []


async def test_what_is_acknowledged_does_not_come_again(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1", b"2")
    got = await consumer.pop()
    assert await consumer.ack(*got) == [Code.SUCCESS, Code.SUCCESS]
    await asyncio.sleep(60)
    assert await consumer.pop() == []
    assert consumer.committed() == 2


async def test_the_committed_offset_stops_at_the_first_unsettled_message(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1", b"2", b"3")
    one, two, three = await consumer.pop()
    await consumer.ack(three)
    assert consumer.committed() == 0
    await consumer.ack(one)
    assert consumer.committed() == 1
    await consumer.ack(two)
    assert consumer.committed() == 3


async def test_an_unsettled_message_comes_again_when_its_time_is_over_and_not_before(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1")
    await consumer.pop(invisible_ms=10_000)
    await asyncio.sleep(9.9)
    assert await consumer.pop() == []
    await asyncio.sleep(0.2)
    (again,) = await consumer.pop()
    assert (again.body, again.attempt) == (b"1", 2)


async def test_setting_the_time_of_day_ends_no_lease(parts: Parts, consumer: PopConsumer) -> None:
    await parts.send(TOPIC, b"1")
    await consumer.pop(invisible_ms=10_000)
    parts.clock.jump(3_600_000)  # type: ignore[attr-defined]
    await asyncio.sleep(5)
    assert await consumer.pop() == []


async def test_a_lease_that_is_over_settles_nothing(parts: Parts, consumer: PopConsumer) -> None:
    await parts.send(TOPIC, b"1")
    (stale,) = await consumer.pop()
    await asyncio.sleep(10.1)
    assert await consumer.ack(stale) == [Code.INVALID_RECEIPT_HANDLE]
    (again,) = await consumer.pop()
    assert await consumer.ack(stale) == [Code.INVALID_RECEIPT_HANDLE]
    assert await consumer.ack(again) == [Code.SUCCESS]
    assert await consumer.ack(stale) == [Code.INVALID_RECEIPT_HANDLE]


async def test_an_acknowledgement_may_be_repeated_within_its_time(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1")
    (got,) = await consumer.pop()
    assert await consumer.ack(got, got) == [Code.SUCCESS, Code.SUCCESS]
    assert await consumer.ack(got) == [Code.SUCCESS]
    await asyncio.sleep(10.1)
    assert await consumer.ack(got) == [Code.INVALID_RECEIPT_HANDLE]


async def test_one_bad_lease_does_not_keep_the_others_from_being_settled(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1", b"2")
    one, two = await consumer.pop()
    other = PopConsumer(parts, group="other")
    await other.pop()
    foreign = (await PopConsumer(parts, group="third").pop())[0]
    assert await consumer.ack(one, two, foreign) == [Code.SUCCESS] * 3
    made_up = LeaseSet(GROUP, TOPIC, 0, 1, 2**60, [7])
    assert await consumer.ack_sets(made_up) == [Code.INVALID_RECEIPT_HANDLE]


async def test_the_leases_of_one_pop_are_settled_as_a_set(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, *(b"%d" % number for number in range(6)))
    got = await consumer.pop()
    assert await consumer.ack_sets(lease_set(got[4], got[0], got[1])) == [Code.SUCCESS] * 3
    assert consumer.committed() == 2
    assert await consumer.ack_sets(lease_set(got[0], got[2])) == [Code.SUCCESS] * 2, "repeated"
    assert consumer.committed() == 3
    await asyncio.sleep(10.1)
    assert bodies(await consumer.pop()) == [b"3", b"5"]


async def test_sets_of_several_queues_pops_and_groups_are_settled_together(
    parts: Parts, consumer: PopConsumer
) -> None:
    parts.tables.topics.put(TopicConfig(TOPIC, 2, 2))
    await parts.group("other")
    for queue_id in (0, 1):
        await parts.send(TOPIC, b"1", b"2", b"3", queue_id=queue_id)
    low, high = await consumer.pop(2, queue_id=0), await consumer.pop(2, queue_id=1)
    low += await consumer.pop(queue_id=0)
    other = PopConsumer(parts, group="other")
    theirs = await other.pop(queue_id=1)
    calls = parts.flusher.calls
    sets = lease_set(*low[:2]), lease_set(low[2]), lease_set(high[1]), lease_set(*theirs)
    assert await consumer.ack_sets(*sets) == [Code.SUCCESS] * 7
    assert parts.flusher.calls == calls + 1, "one wait for the disk"
    assert [consumer.committed(queue_id) for queue_id in (0, 1)] == [3, 0]
    assert other.committed(1) == 3


async def test_what_is_over_in_a_set_does_not_keep_the_rest_from_being_settled(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1", b"2", b"3", b"4")
    got = await consumer.pop()
    await consumer.change(got[1], 1_000)
    await consumer.change(got[2], 60_000)
    await asyncio.sleep(1.1)
    (again,) = await consumer.pop()
    whole = lease_set(*got)._replace(queue_offsets=[0, 1, 2, 3, 4, -1, 2**62])
    ok, over = Code.SUCCESS, Code.INVALID_RECEIPT_HANDLE
    assert await consumer.ack_sets(whole) == [ok, over, ok, ok, over, over, over]
    assert await consumer.ack_sets(whole._replace(consumer_group="nobody")) == [over] * 7
    assert await consumer.ack_sets(whole._replace(lease_id=1, queue_offsets=[1])) == [over]
    assert await consumer.ack_sets(lease_set(again)) == [ok]
    assert consumer.committed() == 4


async def test_a_set_whose_time_is_over_is_no_repetition(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1", b"2")
    got = await consumer.pop()
    assert await consumer.ack(*got) == [Code.SUCCESS] * 2
    await asyncio.sleep(10.1)
    over = Code.INVALID_RECEIPT_HANDLE
    assert await consumer.ack_sets(lease_set(*got)) == [over] * 2
    assert await consumer.ack_sets(lease_set(*got)._replace(expires_ms=0)) == [over] * 2
    assert await consumer.ack_sets() == []


async def test_messages_of_one_pop_end_their_leases_each_by_itself(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, *(b"%d" % number for number in range(5)))
    got = await consumer.pop()
    await consumer.ack(got[3])
    await consumer.change(got[0], 5_000)
    await consumer.change(got[1], 20_000)
    await asyncio.sleep(5.1)
    assert bodies(await consumer.pop(invisible_ms=60_000)) == [b"0"]
    await asyncio.sleep(5)
    assert bodies(await consumer.pop(invisible_ms=60_000)) == [b"2", b"4"]
    await asyncio.sleep(10)
    assert bodies(await consumer.pop(invisible_ms=60_000)) == [b"1"]


async def test_a_lease_that_is_changed_while_it_is_written_leaves_the_others_as_they_are(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1", b"2", b"3")
    parts.flusher.hold()
    popping = asyncio.create_task(consumer.pop())
    await asyncio.sleep(0.001)
    [queue] = parts.broker.lease_table.queues()
    lease = LeaseName(GROUP, TOPIC, 0, 0, queue.in_flight[0].lease_id)
    change = InvisibleChange(lease, 60_000)
    changing = asyncio.create_task(parts.broker.invisible_durations.change([change]))
    await asyncio.sleep(0.001)
    parts.flusher.let_go()
    assert bodies(await popping) == [b"1", b"2", b"3"]
    assert [one.error for one in await changing] == [None]
    await asyncio.sleep(10.1)
    assert bodies(await consumer.pop()) == [b"2", b"3"]


async def test_a_damaged_record_is_left_out_and_those_around_it_keep_their_names(
    parts: Parts, consumer: PopConsumer
) -> None:
    stored = await parts.send(TOPIC, b"first", b"broken", b"third")
    [log] = sorted((parts.store.path / "commitlog").iterdir())
    with log.open("r+b") as file:
        content = file.read(stored[2].physical_offset)
        file.seek(content.rindex(b"broken"))
        file.write(b"BROKEN")
    got = await consumer.pop()
    assert [(one.body, one.lease.queue_offset) for one in got] == [(b"first", 0), (b"third", 2)]
    assert await consumer.ack_sets(lease_set(*got)) == [Code.SUCCESS] * 2
    assert consumer.committed() == 3


async def test_a_changed_duration_counts_from_the_change(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1")
    (got,) = await consumer.pop(invisible_ms=10_000)
    await asyncio.sleep(8)
    shown = await consumer.change(got, 20_000)
    assert (shown.error, shown.invisible_duration_ms) == (None, 20_000)
    await asyncio.sleep(19.9)
    assert await consumer.pop() == []
    assert await consumer.ack(got) == [Code.SUCCESS]


async def test_a_duration_of_nothing_shows_the_message_at_once(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1")
    (got,) = await consumer.pop()
    waiting = asyncio.create_task(consumer.pop(poll_ms=20_000))
    await asyncio.sleep(1)
    await consumer.change(got, 0)
    (again,) = await waiting
    assert again.attempt == 2
    assert (await consumer.change(got, 0)).error is not None


async def test_a_delivery_can_be_left_uncounted(parts: Parts, consumer: PopConsumer) -> None:
    await parts.send(TOPIC, b"1")
    (got,) = await consumer.pop()
    await consumer.change(got, 0, uncounted=True)
    await asyncio.sleep(0.01)
    assert [one.attempt for one in await consumer.pop()] == [1]


async def test_the_retry_delay_of_the_group_is_used_when_asked_for(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.group(GROUP, retry_delays_ms=(3_000, 7_000))
    await parts.send(TOPIC, b"1")
    waits = []
    for _ in range(3):
        (got,) = await consumer.pop(poll_ms=30_000)
        waits.append((await consumer.change(got, None)).invisible_duration_ms)
    assert waits == [3_000, 7_000, 7_000]


async def test_a_lease_that_somebody_changed_is_left_to_them_when_asked_for(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1")
    (got,) = await consumer.pop()
    renewed = await consumer.change(got, 20_000, unless_changed=True)
    assert renewed.error is None
    assert (await consumer.change(got, 30_000, unless_changed=True)).error is not None
    later = consumer.renewed(got, renewed)
    assert (await consumer.change(later, 1_000)).error is None  # given back, by another way
    assert (await consumer.change(later, 60_000, unless_changed=True)).error is not None
    await asyncio.sleep(1.1)
    assert [one.attempt for one in await consumer.pop()] == [2]


async def test_durations_out_of_range_are_refused(parts: Parts, consumer: PopConsumer) -> None:
    await parts.send(TOPIC, b"1")
    (got,) = await consumer.pop()
    for wrong in (-1, 43_200_001):
        error = (await consumer.change(got, wrong)).error
        assert error is not None
        assert error.code is Code.INVALID_PARAMETER
    with pytest.raises(InvalidParameter):
        await consumer.pop(invisible_ms=0)


async def test_after_the_last_attempt_a_message_is_a_dead_letter_and_not_before(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.group(GROUP, retry_max_times=2)
    await parts.send(TOPIC, b"1", properties={"UNIQ_KEY": "U1"})
    attempts = [(await consumer.pop(poll_ms=30_000))[0].attempt for _ in range(3)]
    assert attempts == [1, 2, 3]
    assert f"%DLQ%{GROUP}" not in parts.tables.topics
    await asyncio.sleep(10.1)
    (letter,) = await parts.read(f"%DLQ%{GROUP}")
    assert (letter.body, letter.reconsume_times) == (b"1", 3)
    assert letter.properties[props.DLQ_ORIGIN_TOPIC] == TOPIC
    assert letter.properties[props.DLQ_ORIGIN_MESSAGE_ID] == "U1"
    assert await consumer.pop(poll_ms=30_000) == []
    assert (consumer.committed(), parts.meters.dead_letters) == (1, 1)


async def test_a_consumer_makes_a_dead_letter_and_its_lease_is_settled(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1")
    (got,) = await consumer.pop()
    assert await consumer.dead_letter(got, "ValueError") == Code.SUCCESS
    assert await consumer.dead_letter(got) == Code.INVALID_RECEIPT_HANDLE
    (letter,) = await parts.read(f"%DLQ%{GROUP}")
    assert letter.properties[props.DLQ_REASON] == "ValueError"
    assert await consumer.pop(poll_ms=30_000) == []


async def test_a_pop_that_waits_is_woken_by_an_arrival_it_wants(
    parts: Parts, consumer: PopConsumer
) -> None:
    waiting = asyncio.create_task(consumer.pop(poll_ms=20_000, wanted="red"))
    await asyncio.sleep(1)
    await parts.send(TOPIC, b"1", properties={"TAGS": "blue"})
    await asyncio.sleep(1)
    assert not waiting.done()
    await parts.send(TOPIC, b"2", properties={"TAGS": "red"})
    assert bodies(await waiting) == [b"2"]
    assert asyncio.get_running_loop().time() < 3


async def test_of_many_that_wait_each_message_wakes_one(
    parts: Parts, consumer: PopConsumer
) -> None:
    waiting = [asyncio.create_task(consumer.pop(1, poll_ms=20_000)) for _ in range(5)]
    await asyncio.sleep(1)
    await parts.send(TOPIC, b"1", b"2")
    await asyncio.sleep(1)
    assert [task.done() for task in waiting] == [True, True, False, False, False]
    await asyncio.gather(*waiting)


async def test_a_cancelled_pop_leaves_its_messages_to_others_uncounted(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1")
    parts.flusher.hold()
    gone = asyncio.create_task(consumer.pop())
    await asyncio.sleep(0.1)
    gone.cancel()
    await asyncio.wait([gone])
    parts.flusher.let_go()
    await asyncio.sleep(0.1)
    assert [(one.body, one.attempt) for one in await consumer.pop()] == [(b"1", 1)]


async def test_what_a_filter_does_not_let_through_is_settled(
    parts: Parts, consumer: PopConsumer
) -> None:
    for size in range(6):
        await parts.send(TOPIC, b"%d" % size, properties={"size": str(size)})
    wanted = compile_filter("SQL92", "size > 3")
    got = await consumer.pop(wanted=wanted)
    assert bodies(got) == [b"4", b"5"]
    await consumer.ack(*got)
    assert consumer.committed() == 6


async def test_all_queues_of_a_topic_are_popped(parts: Parts, consumer: PopConsumer) -> None:
    parts.tables.topics.put(TopicConfig(TOPIC, 4, 4))
    for queue_id in range(4):
        await parts.send(TOPIC, b"%d" % queue_id, queue_id=queue_id)
    assert sorted(bodies(await consumer.pop(3)) + bodies(await consumer.pop(3))) == [
        b"0",
        b"1",
        b"2",
        b"3",
    ]


async def test_of_a_topic_by_priority_the_highest_queue_goes_first(
    parts: Parts, consumer: PopConsumer
) -> None:
    parts.tables.topics.put(TopicConfig(TOPIC, 3, 3, attributes={"message.type": "PRIORITY"}))
    for queue_id, body in ((0, b"low"), (2, b"high"), (1, b"middle"), (2, b"high too")):
        await parts.send(TOPIC, body, queue_id=queue_id)
    first = await consumer.pop(1, invisible_ms=10_000)
    assert bodies(first) == [b"high"]
    await consumer.pop(1)  # the other of the highest
    assert bodies(await consumer.pop(1)) == [b"middle"]
    # What comes again keeps its place before what is lower, and gives way to what is higher.
    await parts.send(TOPIC, b"high at last", queue_id=2)
    await consumer.change(first[0], 0)
    await asyncio.sleep(0.01)
    assert bodies(await consumer.pop()) == [b"high", b"high at last", b"low"]


async def test_a_lower_priority_waits_while_a_higher_queue_is_looked_through(
    parts: Parts, consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector, "SCAN_ROUNDS", 1)
    parts.tables.topics.put(TopicConfig(TOPIC, 2, 2, attributes={"message.type": "PRIORITY"}))
    await parts.send(TOPIC, *(b"other" for _ in range(900)), queue_id=1)
    await parts.send(TOPIC, b"high", queue_id=1, properties={"color": "red"})
    await parts.send(TOPIC, b"low", queue_id=0, properties={"color": "red"})
    wanted = compile_filter("SQL92", "color = 'red'")
    assert bodies(await consumer.pop(1, wanted=wanted)) == [b"high"]
    assert bodies(await consumer.pop(1, wanted=wanted)) == [b"low"]


async def test_groups_lease_independently(parts: Parts, consumer: PopConsumer) -> None:
    await parts.send(TOPIC, b"1")
    assert bodies(await consumer.pop()) == bodies(await PopConsumer(parts, "other").pop()) == [b"1"]


async def test_a_reset_voids_what_was_on_lease(parts: Parts, consumer: PopConsumer) -> None:
    await parts.send(TOPIC, b"1", b"2")
    got = await consumer.pop()
    await consumer.ack(got[0])
    await parts.broker.offset_queries.reset(GROUP, TOPIC, [0], queue_offset=0)
    assert [one.attempt for one in await consumer.pop()] == [1, 1]
    assert await consumer.ack(got[1]) == [Code.INVALID_RECEIPT_HANDLE]


async def test_a_message_that_cannot_be_read_keeps_no_other_from_its_dead_letter(
    parts: Parts, consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await parts.group(GROUP, retry_max_times=0)
    await parts.send(TOPIC, b"1", b"2", b"3")
    await consumer.pop(invisible_ms=1_000)
    read, sick = parts.store.read, True

    def some(topic: str, queue_id: int, offset: int, **limits: Any) -> ReadResult:
        if sick and topic == TOPIC and offset == 1:
            raise StoreReadError(OSError(errno.EIO, "bad sector"))
        return read(topic, queue_id, offset, **limits)

    monkeypatch.setattr(parts.store, "read", some)
    await asyncio.sleep(5)
    assert await parts.bodies(f"%DLQ%{GROUP}") == [b"1", b"3"]
    assert consumer.committed() == 1
    sick = False
    await asyncio.sleep(5)
    assert await parts.bodies(f"%DLQ%{GROUP}") == [b"1", b"3", b"2"]
    assert consumer.committed() == 3


async def test_a_group_that_is_deleted_while_its_dead_letters_are_made_loses_no_other_s(
    parts: Parts, consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PopConsumer(parts, "other")
    for name in (GROUP, "other"):
        await parts.group(name, retry_max_times=0)
    await parts.send(TOPIC, b"1")
    await consumer.pop(invisible_ms=1_000)
    await other.pop(invisible_ms=1_000)
    for_group = parts.broker.topics.for_group

    async def meanwhile(topic: str, queue_count: int = 1) -> TopicConfig:
        parts.tables.groups.remove("other")
        return await for_group(topic, queue_count)

    monkeypatch.setattr(parts.broker.topics, "for_group", meanwhile)
    await asyncio.sleep(5)
    assert await parts.bodies(f"%DLQ%{GROUP}") == [b"1"]


async def test_a_deleted_topic_takes_its_leases_with_it(
    parts: Parts, consumer: PopConsumer
) -> None:
    await parts.send(TOPIC, b"1", b"2")
    await consumer.pop()
    await parts.broker.administration.delete_topic(TOPIC)
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await parts.send(TOPIC, b"new")
    assert [(one.body, one.attempt) for one in await consumer.pop()] == [(b"new", 1)]


async def test_an_answer_keeps_to_the_bytes_asked_for(parts: Parts, consumer: PopConsumer) -> None:
    await parts.send(TOPIC, b"a" * 5_000, b"b" * 5_000, b"c" * 5_000)
    assert len(await consumer.pop(max_bytes=100)) == 1
    assert len(await consumer.pop(max_bytes=11_000)) == 2


async def test_a_waiting_pop_makes_asynchronous_flush_flush(tmp_path: Path) -> None:
    parts = await Parts.begin(tmp_path / "async", flushDiskType="ASYNC_FLUSH")
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    waiting = asyncio.create_task(PopConsumer(parts).pop(poll_ms=20_000))
    await asyncio.sleep(0.1)
    sent_at = asyncio.get_running_loop().time()
    await parts.send(TOPIC, b"1")
    assert bodies(await waiting) == [b"1"]
    assert asyncio.get_running_loop().time() - sent_at < 2, "it waits 10 s for more otherwise"
    await parts.end()
