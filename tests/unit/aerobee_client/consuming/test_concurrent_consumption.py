"""Listeners that time out, and messages that are being sent back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from aerobee_client.consuming import concurrent_consumption
from aerobee_client.consuming.concurrent_consumption import ConcurrentConsumption
from aerobee_client.consuming.failure_reports import FailureReports
from aerobee_client.consuming.listener import Consume
from aerobee_client.consuming.offsets import OffsetStore
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.consuming.send_back import Outcome, Rejection, SendBack
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import ConsumerOptions
from support.clock.manual_clock import ManualClock
from support.clock.polling import until

QUEUE = MessageQueue("t", "broker-a", 0)


class Record:
    """The fields of a record that this test needs."""

    topic, queue_id, queue_offset, store_size, reconsume_times = "t", 0, 0, 100, 0
    properties: dict[str, str] = {}  # noqa: RUF012
    offset_message_id = "ID"


class HeldSendBack:
    """A SendBack whose results the test sets."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, asyncio.Future[Outcome]]] = []

    def send(self, message: ReceivedMessage, rejection: Rejection) -> asyncio.Future[Outcome]:
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.sent.append((rejection.reason, done))
        return done

    async def drain(self) -> None: ...


@pytest.mark.parametrize("outcome", [Outcome.REDELIVERED, Outcome.KEPT])
async def test_a_timed_out_listener_that_fails_makes_no_second_retry(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent_consumption, "CONSUME_AGAIN_S", 0.01)
    clock, send_back = ManualClock(), HeldSendBack()
    clock.advance(1)
    offsets = OffsetStore(cast(Any, None), "g")
    may_fail = asyncio.Event()
    calls: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        calls.append(message.reconsume_times)
        if len(calls) == 1:
            await may_fail.wait()
            raise ValueError

    options = ConsumerOptions(concurrency=1, consume_timeout=timedelta(seconds=900))
    consumption = ConcurrentConsumption(
        Consume(listen, None),
        offsets,
        cast(SendBack, send_back),
        clock,
        options,
        reports=FailureReports("listen", "dead"),
    )
    consumption.start()
    message = ReceivedMessage(cast(Any, Record()), "broker-a")
    process_queue = ProcessQueue(QUEUE, options)
    process_queue.put([message], 1)
    consumption.submit(process_queue, [message])
    await until(lambda: calls)
    clock.advance(901_000)
    consumption.sweep()
    may_fail.set()
    await asyncio.sleep(0.1)
    ((reason, answer),) = send_back.sent
    assert reason == "ConsumeTimeout"
    answer.set_result(outcome)
    expected = [0, 1] if outcome is Outcome.KEPT else [0]
    await until(lambda: calls == expected, "what the broker does not take is consumed here")
    await asyncio.sleep(0.1)  # ten times the delay after which it would come again
    assert calls == expected
    assert offsets.get(QUEUE) == 1
    await consumption.close(1)
