"""Settling what is on lease: acknowledgements, changes, dead letters; many in a request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from aerobee_client.errors import LeaseFailures
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.message import ReceivedMessage
from aerobee_client.observing.interceptors import Interceptor
from aerobee_wire.handles import receipt_handle
from aerobee_wire.status import Code
from aerobee_wire.topics import dead_letter_topic
from support.client.leasing import (
    GROUP,
    LEASE,
    NO_WAIT,
    TOPIC,
    Leasing,
    bodies,
    deliveries,
    seconds,
)
from support.codes import raises_code


async def test_acknowledgements_of_one_loop_turn_are_one_request(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(*(b"%d" % number for number in range(20)))
    messages = await consumer.receive(32, LEASE)
    await asyncio.gather(*(consumer.ack(message) for message in messages))
    [request] = leasing.transport.of("Ack")
    [lease_set] = request.lease_sets
    assert len(lease_set.queue_offsets) == 20
    assert not await consumer.receive(32, LEASE, seconds(15))


async def test_acknowledgements_meanwhile_wait_for_the_answer_and_leave_together(
    leasing: Leasing,
) -> None:
    consumer = await leasing.started()
    await leasing.send(*(b"%d" % number for number in range(20)))
    messages = await consumer.receive(32, LEASE)
    leasing.brokers["a"].flusher.hold()
    first = asyncio.create_task(consumer.ack(messages[0]))
    await asyncio.sleep(0.1)
    rest = [asyncio.create_task(consumer.ack(message)) for message in messages[1:]]
    await asyncio.sleep(0.1)
    assert leasing.transport.count("Ack") == 1
    leasing.brokers["a"].flusher.let_go()
    await asyncio.gather(first, *rest)
    assert leasing.transport.count("Ack") == 2


async def test_a_stale_lease_is_invalid_and_a_repeated_ack_succeeds(leasing: Leasing) -> None:
    consumer, other = await leasing.started(), await leasing.started()
    await leasing.send(b"1", b"2")
    kept, late = await consumer.receive(32, LEASE)
    await consumer.ack(kept)
    await consumer.ack(kept)
    await other.ack(kept.receipt_handle)  # its broker remembers
    await asyncio.sleep(LEASE.total_seconds())
    await consumer.ack(kept)
    with raises_code(Code.INVALID_RECEIPT_HANDLE):
        await consumer.ack(late)
    assert deliveries(await consumer.receive(32, LEASE)) == [(b"2", 2)]


async def test_of_several_messages_the_error_says_which_failed(two: Leasing) -> None:
    consumer = await two.started()
    await two.send(b"1", b"2", to="a")
    messages = await consumer.receive(32, LEASE)
    await asyncio.sleep(LEASE.total_seconds())
    [again, _] = await consumer.receive(32, LEASE)  # "1" under another lease
    await two.send(b"3", to="b")
    [of_b] = await consumer.receive(32, LEASE)
    with pytest.raises(LeaseFailures) as caught:
        await consumer.ack([again, messages[1], of_b, messages[0].receipt_handle])
    codes = [failure and failure.code for failure in caught.value.failures]
    assert codes == [None, Code.INVALID_RECEIPT_HANDLE, None, Code.INVALID_RECEIPT_HANDLE]
    assert caught.value.code is Code.INVALID_RECEIPT_HANDLE
    await consumer.ack([])


async def test_a_handle_of_another_group_or_of_nobody_is_invalid(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"x")
    [message] = await consumer.receive(32, LEASE)
    foreign = receipt_handle.encode(message.handle._replace(consumer_group="other"))
    for text in ("no handle", foreign):
        with raises_code(Code.INVALID_RECEIPT_HANDLE):
            await consumer.ack(text)
    unknown = receipt_handle.encode(message.handle._replace(broker_name="nobody"))
    with raises_code(Code.BROKER_NOT_EXIST):
        await consumer.ack(unknown)


async def test_a_process_that_receives_nothing_settles_for_others(two: Leasing) -> None:
    """It subscribes to no topic, so that no route names a broker until then."""
    receiving = await two.started()
    for name in ("a", "b"):
        await two.send(b"acked", b"back", b"dead", to=name)
    received: list[LeasedMessage] = []
    for _ in range(2):
        received += await receiving.receive(32, seconds(600))
    handles: dict[bytes, list[str]] = {}
    for message in received:
        handles.setdefault(message.body, []).append(message.receipt_handle)
    assert {len(each) for each in handles.values()} == {2}
    for settle in ("acked", "back", "dead"):
        other = two.consumer()
        other.unsubscribe(TOPIC)
        async with other:
            given = handles[settle.encode()]
            if settle == "acked":
                await other.ack(given)
            elif settle == "back":
                await other.change_invisible_duration(given, seconds(0))
            else:
                await other.dead_letter(given, "by another process")
    again = [*await receiving.receive(32, LEASE), *await receiving.receive(32, LEASE)]
    assert [message.body for message in again] == [b"back", b"back"]


async def test_an_ack_waits_for_a_broker_that_is_away(leasing: Leasing) -> None:
    consumer = await leasing.started(request_timeout=seconds(5))
    await leasing.send(b"x", b"y")
    first, second = await consumer.receive(32, LEASE)
    leasing.transport.away.add("a")
    acking = asyncio.create_task(consumer.ack(first))
    await asyncio.sleep(3)
    leasing.transport.away.clear()
    await acking
    leasing.transport.away.add("a")
    began_s = asyncio.get_running_loop().time()
    with raises_code(Code.BROKER_UNREACHABLE):
        await consumer.ack(second)
    assert 4 < asyncio.get_running_loop().time() - began_s <= 5


async def test_a_broker_that_hangs_keeps_nobody_beyond_his_deadline(leasing: Leasing) -> None:
    consumer = await leasing.started(request_timeout=seconds(2))
    await leasing.send(b"x", b"y")
    first, second = await consumer.receive(32, LEASE)
    leasing.brokers["a"].flusher.hold()
    acks = [asyncio.create_task(consumer.ack(first))]
    await asyncio.sleep(0.5)
    acks.append(asyncio.create_task(consumer.ack(second)))
    began_s = asyncio.get_running_loop().time()
    outcomes = await asyncio.gather(*acks, return_exceptions=True)
    assert [getattr(outcome, "code", None) for outcome in outcomes] == [Code.REQUEST_TIMEOUT] * 2
    assert asyncio.get_running_loop().time() - began_s <= 2
    leasing.brokers["a"].flusher.let_go()


async def test_what_was_done_by_a_request_whose_answer_was_lost_is_done(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"acked", b"dead", b"back")
    acked, dead, back = await consumer.receive(32, LEASE)
    leasing.transport.lost.update(("Ack", "DeadLetter", "ChangeInvisibleDuration"))
    await consumer.ack(acked)
    await consumer.dead_letter(dead, "poison")
    await consumer.change_invisible_duration(back, NO_WAIT)
    assert leasing.transport.count("DeadLetter") == 2
    assert deliveries(await consumer.receive(32, LEASE)) == [(b"back", 2)]
    assert await leasing.brokers["a"].bodies(dead_letter_topic(GROUP)) == [b"dead"]


async def test_a_changed_invisible_duration_counts_from_now(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"x")
    [message] = await consumer.receive(32, LEASE)
    await asyncio.sleep(8)
    await consumer.change_invisible_duration(message, seconds(20))
    assert not await consumer.receive(32, LEASE, seconds(19))
    await consumer.ack(message)
    assert not await consumer.receive(32, LEASE, seconds(19))


@pytest.mark.parametrize(("counted", "attempt"), [(True, 2), (False, 1)])
async def test_a_message_is_given_back(leasing: Leasing, counted: bool, attempt: int) -> None:
    consumer = await leasing.started()
    await leasing.send(b"x")
    [message] = await consumer.receive(32, LEASE)
    await consumer.change_invisible_duration(message, NO_WAIT, counted=counted)
    assert deliveries(await consumer.receive(32, LEASE, NO_WAIT)) == [(b"x", attempt)]
    with raises_code(Code.INVALID_RECEIPT_HANDLE):
        await consumer.change_invisible_duration(message, LEASE)
    with raises_code(Code.INVALID_PARAMETER):
        await consumer.change_invisible_duration(message, timedelta(hours=13))


async def test_a_message_waits_for_the_retry_delay_of_the_group(leasing: Leasing) -> None:
    await leasing.brokers["a"].group(GROUP, retry_delays_ms=(30_000,))
    consumer = await leasing.started()
    await leasing.send(b"x")
    [message] = await consumer.receive(32, LEASE)
    await consumer.change_invisible_duration(message, None)
    assert not await consumer.receive(32, LEASE, seconds(29))
    assert deliveries(await consumer.receive(32, LEASE, seconds(2))) == [(b"x", 2)]


async def test_a_dead_letter_has_its_reason(leasing: Leasing) -> None:
    consumer = await leasing.started()
    await leasing.send(b"1", b"2")
    first, second = await consumer.receive(32, LEASE)
    await consumer.dead_letter(first, ValueError("no such flight"))
    await consumer.dead_letter([second.receipt_handle], "PAYLOAD", "not JSON")
    letters = await leasing.brokers["a"].read(dead_letter_topic(GROUP))
    found = [
        (letter.properties["DLQ_REASON"], letter.properties["DLQ_REASON_DESCRIPTION"])
        for letter in letters
    ]
    assert found == [("ValueError", "no such flight"), ("PAYLOAD", "not JSON")]
    with raises_code(Code.INVALID_RECEIPT_HANDLE):
        await consumer.dead_letter(second, "twice")
    assert not bodies(await consumer.receive(32, LEASE, seconds(15)))


async def test_interceptors_are_notified_of_receives_and_settlements(leasing: Leasing) -> None:
    class Recorder(Interceptor):
        def __init__(self) -> None:
            self.events: list[tuple[str, list[bytes], object]] = []

        def after_receive(
            self, consumer_group: str, messages: Sequence[ReceivedMessage], elapsed_s: float
        ) -> None:
            assert consumer_group == GROUP and elapsed_s >= 0
            self.events.append(("receive", [each.body for each in messages], None))

        def after_settle(
            self,
            consumer_group: str,
            operation: str,
            messages: Sequence[ReceivedMessage],
            elapsed_s: float,
            error: BaseException | None,
        ) -> None:
            assert elapsed_s >= 0
            code = getattr(error, "code", None)
            self.events.append((operation, [each.body for each in messages], code))

    recorder = Recorder()
    consumer = await leasing.started(interceptors=[recorder])
    assert await consumer.receive(32, LEASE, NO_WAIT) == []
    await leasing.send(b"a", b"b", b"c")
    a, b, c = await consumer.receive(32, LEASE)
    await consumer.ack([a])
    await consumer.dead_letter(b, "hopeless")
    await asyncio.sleep(LEASE.total_seconds() + 1)
    with raises_code(Code.INVALID_RECEIPT_HANDLE):
        await consumer.ack(c)
    assert recorder.events == [
        ("receive", [b"a", b"b", b"c"], None),
        ("ack", [b"a"], None),
        ("dead_letter", [b"b"], None),
        ("ack", [b"c"], Code.INVALID_RECEIPT_HANDLE),
    ]
