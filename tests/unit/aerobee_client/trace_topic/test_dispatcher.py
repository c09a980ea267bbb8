"""The queue and the batches of trace records, over a send in memory, in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from aerobee_client import Message
from aerobee_client.trace_topic.dispatcher import (
    BATCH,
    CLOSE_TIMEOUT_S,
    INTERVAL_S,
    MAX_QUEUED,
    TraceDispatcher,
)
from aerobee_client.trace_topic.records import TraceRecord, bodies
from aerobee_wire.status import Code, MqError
from support.clock.virtual_loop import run_ready_tasks


def record(number: int) -> TraceRecord:
    return TraceRecord(f"{number};", [f"key-{number}"])


class Sent:
    """Stores messages. While `error` is set, sends fail; while `held`, they do not end."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.error: Exception | None = None
        self.held = False

    async def send(self, message: Message) -> None:
        if self.held:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


async def test_a_few_records_wait_for_others_and_many_do_not() -> None:
    sent = Sent()
    dispatcher = TraceDispatcher(sent.send)
    dispatcher.start()
    dispatcher.put(record(0))
    await asyncio.sleep(INTERVAL_S / 2)
    dispatcher.put(record(1))
    assert sent.messages == []
    await asyncio.sleep(INTERVAL_S)
    assert sent.bodies == [b"0;1;"] and sent.messages[0].keys == ("key-0", "key-1")
    for number in range(BATCH):
        dispatcher.put(record(number))
    await run_ready_tasks()
    assert sent.bodies[1:] == [b"0;1;2;3;4;5;6;7;8;9;"]
    await dispatcher.close()


async def test_records_before_the_start_and_before_the_close_are_sent() -> None:
    sent = Sent()
    dispatcher = TraceDispatcher(sent.send)
    dispatcher.put(record(0))
    dispatcher.start()
    await asyncio.sleep(INTERVAL_S)
    await run_ready_tasks()
    assert sent.bodies == [b"0;"]
    dispatcher.put(record(1))
    await dispatcher.close()
    assert sent.bodies == [b"0;", b"1;"] and dispatcher.dropped == 0


async def test_a_full_queue_drops_and_a_send_that_hangs_does_not_hold_the_close() -> None:
    sent = Sent()
    sent.held = True
    dispatcher = TraceDispatcher(sent.send)
    dispatcher.start()
    for number in range(MAX_QUEUED + 5):
        dispatcher.put(record(number))
    assert dispatcher.dropped == 5
    began_s = asyncio.get_running_loop().time()
    await dispatcher.close()
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(CLOSE_TIMEOUT_S)
    assert dispatcher.dropped == MAX_QUEUED + 5 and sent.messages == []


async def test_a_send_that_the_close_interrupts_is_repeated() -> None:
    sent = Sent()
    sent.held = True
    dispatcher = TraceDispatcher(sent.send)
    dispatcher.start()
    for number in range(BATCH):
        dispatcher.put(record(number))
    await run_ready_tasks()
    sent.held = False
    await dispatcher.close()
    assert sent.bodies == [b"0;1;2;3;4;5;6;7;8;9;"] and dispatcher.dropped == 0


async def test_a_failure_is_logged_once_a_minute_and_the_next_records_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = Sent()
    sent.error = MqError(Code.TOPIC_NOT_EXIST, "no topic")
    dispatcher = TraceDispatcher(sent.send)
    dispatcher.start()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            dispatcher.put(record(number))
            await asyncio.sleep(3 * INTERVAL_S)
    assert dispatcher.dropped == 3
    [warning] = caplog.messages
    assert "traceTopicEnable" in warning
    sent.error = None
    dispatcher.put(record(3))
    await asyncio.sleep(3 * INTERVAL_S)
    assert sent.bodies == [b"3;"]
    await dispatcher.close()


def test_bodies_and_keys_have_limits() -> None:
    records = [TraceRecord("x" * 10, [f"key-{number}", "all"]) for number in range(5)]
    by_size = bodies(records, max_bytes=25, max_key_bytes=1_000)
    assert [(len(each.body), each.records) for each in by_size] == [(20, 2), (20, 2), (10, 1)]
    assert by_size[0].keys == ("key-0", "all", "key-1")
    by_keys = bodies(records, max_bytes=1_000, max_key_bytes=16)  # two keys and "all"
    assert [each.records for each in by_keys] == [2, 2, 1]
    assert by_keys[1].keys == ("key-2", "all", "key-3")
    large = bodies([TraceRecord("x" * 30, ["a"]), records[0]], max_bytes=25, max_key_bytes=16)
    assert [len(each.body) for each in large] == [30, 10]
    assert bodies([], max_bytes=25, max_key_bytes=16) == []
