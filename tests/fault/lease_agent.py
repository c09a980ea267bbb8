"""A process that consumes by a simple consumer, to be killed: `python -m fault.lease_agent NAMESRV
TOPIC GROUP SEED`. It prints a line of JSON for each thing that happened, and ends by SIGTERM or by
an error that no restart of a broker explains.

It acknowledges most messages, some of them twice; gives a few back, dead-letters a few, and leaves
a few to the end of their lease.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from typing import Any

from aerobee_client import (
    AsyncSimpleConsumer,
    ConsumeFromWhere,
    LeasedMessage,
    MqError,
    ReceivedMessage,
)
from aerobee_wire.status import Code

LEASE = timedelta(seconds=5)
WAIT = timedelta(seconds=1)
WORKERS = 4
# What a user may see while brokers restart for longer than `wait` or `request_timeout`.
OUTAGE = frozenset(
    {
        Code.BROKER_UNREACHABLE,
        Code.REQUEST_TIMEOUT,
        Code.BROKER_NOT_EXIST,
        Code.TOPIC_NOT_EXIST,
        Code.SERVICE_NOT_AVAILABLE,
        Code.INVALID_RECEIPT_HANDLE,
    }
)


def report(event: str, message: ReceivedMessage | None = None, **more: Any) -> None:
    """`at_ms`: since the epoch; `at`: seconds of the monotonic clock of the machine."""
    reported = {"event": event, "at_ms": time.time() * 1_000, "at": time.monotonic(), **more}
    if message is not None:
        reported["place"] = [
            *(message.stored_topic, message.broker_name),
            *(message.queue_id, message.queue_offset),
        ]
        reported["key"] = " ".join(message.keys)
        reported["body"] = message.body.decode()
    if isinstance(message, LeasedMessage):
        reported["popped_ms"] = message.handle.pop_time_ms
        reported["attempt"] = message.delivery_attempt
        reported["lease"] = message.handle.lease_id  # of the whole receive; a renewal keeps it
    write(reported)


def write(reported: dict[str, Any]) -> None:
    """At once, so that lines of several threads, or of a process that is killed, are whole."""
    os.write(sys.stdout.fileno(), f"{json.dumps(reported)}\n".encode())


async def work(
    consumer: AsyncSimpleConsumer, chance: random.Random, outage: frozenset[Code] = OUTAGE
) -> None:
    """`outage`: what may fail; another failure is raised."""
    while True:
        try:
            for message in await consumer.receive(8, LEASE, WAIT):
                report("received", message)
                await settle(consumer, message, chance)
        except MqError as error:
            if error.code not in outage:
                raise
            report("failed", code=error.code.name)


async def settle(
    consumer: AsyncSimpleConsumer, message: LeasedMessage, chance: random.Random
) -> None:
    dice = chance.random()
    if dice < 0.02:
        return  # its lease ends
    if dice < 0.04:
        await consumer.change_invisible_duration(message, timedelta(0), counted=False)
        report("given back", message)
        return
    report("settling", message)
    if dice < 0.06:
        with consumer.renewing(message):
            await asyncio.sleep(chance.uniform(0, 1.5 * LEASE.total_seconds()))
            await consumer.ack(message)
    elif dice < 0.07:
        await consumer.dead_letter(message, "CHANCE", message.body.decode())
        report("dead-lettered", message)
        return
    else:
        await consumer.ack(message)
    report("acked", message)
    if dice > 0.98:
        await consumer.ack(message.receipt_handle)


async def main() -> None:
    namesrv, topic, group, seed = sys.argv[1:]
    consumer = AsyncSimpleConsumer(
        group, namesrv=namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe(topic)
    await run(consumer, random.Random(int(seed)), WORKERS)


async def run(consumer: AsyncSimpleConsumer, chance: random.Random, workers: int) -> None:
    async with consumer:
        report("started")
        works = asyncio.gather(*(work(consumer, chance) for _ in range(workers)))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, works.cancel)
        try:
            await works
        except asyncio.CancelledError:
            report("stopped")


if __name__ == "__main__":
    asyncio.run(main())
