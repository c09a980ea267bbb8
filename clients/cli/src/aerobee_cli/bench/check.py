"""Send one message through each queue of each broker, and read it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from aerobee_cli.bench.scratch import Scratch
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AsyncAdminClient, AsyncProducer, MessageQueue

LOOK_S = 0.02  # between two reads of a message that is not visible yet


@dataclass(slots=True)
class QueueCheck:
    """The result for one queue, or for a broker without the topic, whose `queue_id` is None.

    The times are in milliseconds, and None if the step failed. `problem` is "" if both succeeded.
    """

    broker_name: str
    queue_id: int | None
    send_ms: float | None = None
    receive_ms: float | None = None
    problem: str = ""


async def check(
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    scratch: Scratch,
    queues: int,
    timeout_s: float,
) -> list[QueueCheck]:
    """Check all queues at once. A send and a read may each take up to `timeout_s`."""
    from aerobee_client import MessageQueue

    found = [QueueCheck(name, None, problem=problem) for name, problem in scratch.problems.items()]
    found += await asyncio.gather(
        *(
            _of_queue(admin, producer, MessageQueue(scratch.topic, broker, number), timeout_s)
            for broker in scratch.brokers
            for number in range(queues)
        )
    )
    return sorted(found, key=lambda each: (each.broker_name, each.queue_id or 0))


async def _of_queue(
    admin: AsyncAdminClient, producer: AsyncProducer, queue: MessageQueue, timeout_s: float
) -> QueueCheck:
    from aerobee_client import Message

    found = QueueCheck(queue.broker_name, queue.queue_id)
    began_s = time.monotonic()
    try:
        sent = await producer.send(
            Message(queue.topic, b"check"), queue=queue, timeout=timedelta(seconds=timeout_s)
        )
    except MqError as error:
        found.problem = f"send: {error.message}"
        return found
    sent_s = time.monotonic()
    found.send_ms = (sent_s - began_s) * 1_000
    problem = f"the message is not readable after {timeout_s:g} s"
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    page = await admin.browse(*queue, sent.queue_offset)
                    ids = [message.message_id for message in page.messages()]
                except MqError as error:
                    problem = error.message
                else:
                    if sent.message_id in ids:
                        found.receive_ms = (time.monotonic() - sent_s) * 1_000
                        return found
                await asyncio.sleep(LOOK_S)
    found.problem = f"receive: {problem}"
    return found


def failed(found: Sequence[QueueCheck]) -> list[QueueCheck]:
    """Return the results with a problem."""
    return [each for each in found if each.problem]
