"""Dead letters of leased messages: after the last attempt, and by the consumer."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.errors import DiskFull, FlushTimeout, StoreReadError
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.messages import ReadResult
from aerobee_wire import properties as props
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer, attempts, deliveries
from support.broker.pop_restarts import crash, failing_disk, restart


async def test_the_last_failed_attempt_makes_a_dead_letter(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, retry_max_times=2)
    await consumer.put(b"1", properties={"UNIQ_KEY": "U1"})
    for attempt in (1, 2, 3):
        assert attempts(await consumer.pop(poll_ms=30_000)) == [attempt]
    assert f"%DLQ%{GROUP}" not in consumer.harness.tables.topics
    await asyncio.sleep(10.1)
    (letter,) = await consumer.harness.read(f"%DLQ%{GROUP}")
    assert (letter.body, letter.reconsume_times) == (b"1", 3)
    assert letter.properties[props.DLQ_ORIGIN_TOPIC] == TOPIC
    assert letter.properties[props.DLQ_ORIGIN_MESSAGE_ID] == "U1"
    assert letter.properties[props.DLQ_REASON] == "InvisibleDurationExpired"
    assert await consumer.pop(poll_ms=30_000) == []
    assert (consumer.committed(), consumer.harness.metrics.dead_letters) == (1, 1)


async def test_a_message_that_a_listener_failed_on_says_so(consumer: PopConsumer) -> None:
    """A lease that runs out without such a report still has the other reason."""
    await consumer.harness.group(GROUP, retry_max_times=1)
    await consumer.put(b"1")
    for client in ("first", "second@10.0.0.1"):
        (message,) = await consumer.pop(poll_ms=30_000, client_id=client)
        await consumer.change(message, 1_000, rejection=Failure())
    await asyncio.sleep(1.1)
    (letter,) = await consumer.harness.read(f"%DLQ%{GROUP}")
    assert letter.properties[props.DLQ_REASON] == "ConsumeFailed"
    assert letter.properties[props.DLQ_REASON_DESCRIPTION].endswith("client second@10.0.0.1")
    assert letter.properties[props.DLQ_CONSUMER] == "second@10.0.0.1"


FAILED = "delivery attempt 2 failed in the listener of client client-1"


@pytest.mark.parametrize("how", ["running", "crash", "restart"])
@pytest.mark.parametrize(
    ("rejection", "expected"),
    [
        (Failure("CardStolen", "£ 12", consumer="c@host"), ("CardStolen", "£ 12", "c@host")),
        (Failure("CardStolen"), ("CardStolen", FAILED, "client-1")),
        (Failure(), ("ConsumeFailed", FAILED, "client-1")),
    ],
)
async def test_the_reason_that_a_consumer_gave_survives_a_restart(
    consumer: PopConsumer, how: str, rejection: Failure, expected: tuple[str, ...]
) -> None:
    await consumer.harness.group(GROUP, retry_max_times=1)
    await consumer.put(b"1")
    await consumer.pop()
    await asyncio.sleep(11)
    (message,) = await consumer.pop(client_id="client-1")
    await consumer.change(message, 1_000, rejection=rejection)
    if how != "running":
        await (crash(consumer) if how == "crash" else restart(consumer))
    await asyncio.sleep(2)
    (letter,) = await consumer.harness.read(f"%DLQ%{GROUP}")
    named = (props.DLQ_REASON, props.DLQ_REASON_DESCRIPTION, props.DLQ_CONSUMER)
    assert tuple(letter.properties[name] for name in named) == expected


async def test_a_reason_that_the_log_does_not_have_is_no_reason(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, retry_max_times=0)
    await consumer.put(b"1")
    (message,) = await consumer.pop()
    with failing_disk(consumer.harness, DiskFull("injected")), pytest.raises(DiskFull):
        await consumer.change(message, 1_000, rejection=Failure("CardStolen"))
    await asyncio.sleep(60)
    (letter,) = await consumer.harness.read(f"%DLQ%{GROUP}")
    assert letter.properties[props.DLQ_REASON] == "InvisibleDurationExpired"


async def test_a_failure_of_an_earlier_attempt_is_no_reason(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, retry_max_times=1)
    await consumer.put(b"1")
    (message,) = await consumer.pop(poll_ms=30_000)
    await consumer.change(message, 1_000, rejection=Failure())
    assert len(await consumer.pop(poll_ms=30_000)) == 1
    await asyncio.sleep(10.1)
    (letter,) = await consumer.harness.read(f"%DLQ%{GROUP}")
    assert letter.properties[props.DLQ_REASON] == "InvisibleDurationExpired"


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_reason_of_an_expired_lease_names_its_last_client(
    ordered: bool, consumer: PopConsumer
) -> None:
    order = ConsumeOrder.ON if ordered else ConsumeOrder.OFF
    await consumer.harness.group(GROUP, retry_max_times=1, consume_order=order)
    await consumer.put(b"1", properties={"DLQ_REASON": "of an earlier life"})
    for client in ("first", "second@10.0.0.1"):
        assert len(await consumer.pop(poll_ms=30_000, client_id=client)) == 1
    await asyncio.sleep(10.1)
    (letter,) = await consumer.harness.read(f"%DLQ%{GROUP}")
    assert letter.properties[props.DLQ_REASON] == "InvisibleDurationExpired"
    description = letter.properties[props.DLQ_REASON_DESCRIPTION]
    assert "attempt 2" in description and description.endswith("client second@10.0.0.1")


async def test_a_client_that_did_not_say_who_it_is_is_not_known(consumer: PopConsumer) -> None:
    await consumer.harness.group(GROUP, retry_max_times=1)
    await consumer.put(b"1")
    await consumer.pop(poll_ms=30_000, client_id="first")
    await consumer.pop(poll_ms=30_000)
    await asyncio.sleep(10.1)
    (letter,) = await consumer.harness.read(f"%DLQ%{GROUP}")
    assert "first" not in letter.properties[props.DLQ_REASON_DESCRIPTION]


async def test_a_consumer_may_dead_letter_a_message(consumer: PopConsumer) -> None:
    await consumer.put(b"1")
    (got,) = await consumer.pop()
    assert await consumer.dead_letter(got, "ValueError") == Code.SUCCESS
    assert await consumer.dead_letter(got) == Code.INVALID_RECEIPT_HANDLE
    (letter,) = await consumer.harness.read(f"%DLQ%{GROUP}")
    assert letter.properties[props.DLQ_REASON] == "ValueError"
    assert await consumer.pop(poll_ms=30_000) == []


async def test_an_unreadable_message_is_dead_lettered_later(
    harness: BrokerHarness, consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.group(GROUP, retry_max_times=0)
    await consumer.put(b"1", b"2", b"3")
    await consumer.pop(invisible_ms=1_000)
    read, is_bad = harness.store.read, True

    def bad_sector(topic: str, queue_id: int, offset: int, **limits: Any) -> ReadResult:
        if is_bad and topic == TOPIC and offset == 1:
            raise StoreReadError(OSError(errno.EIO, "bad sector"))
        return read(topic, queue_id, offset, **limits)

    monkeypatch.setattr(harness.store, "read", bad_sector)
    await asyncio.sleep(5)
    assert await harness.bodies(f"%DLQ%{GROUP}") == [b"1", b"3"]
    assert consumer.committed() == 1
    is_bad = False
    await asyncio.sleep(5)
    assert await harness.bodies(f"%DLQ%{GROUP}") == [b"1", b"3", b"2"]
    assert consumer.committed() == 3


async def test_a_group_deleted_meanwhile_harms_no_other_group(
    harness: BrokerHarness, consumer: PopConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = PopConsumer(harness, "other")
    for name in (GROUP, "other"):
        await harness.group(name, retry_max_times=0)
    await consumer.put(b"1")
    await consumer.pop(invisible_ms=1_000)
    await other.pop(invisible_ms=1_000)
    for_group = harness.broker.topics.for_group

    async def meanwhile(topic: str, queue_count: int = 1) -> TopicConfig:
        harness.tables.groups.remove("other")
        return await for_group(topic, queue_count)

    monkeypatch.setattr(harness.broker.topics, "for_group", meanwhile)
    await asyncio.sleep(5)
    assert await harness.bodies(f"%DLQ%{GROUP}") == [b"1"]


async def test_a_message_that_no_consumer_received_used_up_no_attempt(
    harness: BrokerHarness, consumer: PopConsumer
) -> None:
    """The disk was slow, so the pop ended with an error, but its lease became durable later."""
    await harness.group(GROUP, retry_max_times=0)
    await consumer.put(b"1")
    harness.flusher.hold()
    with pytest.raises(FlushTimeout):
        await consumer.pop()
    harness.flusher.let_go()
    await asyncio.sleep(11)
    assert f"%DLQ%{GROUP}" not in harness.tables.topics
    await crash(consumer)
    assert deliveries(await consumer.pop(poll_ms=1_000)) == [(b"1", 1)]
