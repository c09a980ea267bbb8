"""What the Python client does in a history, as a process: `python -m
fault.replication.namespaces.load ROLE NAMESRV SEED`. It prints a line of JSON for each thing that
happened (`lease_agent.tell`).

ROLE: `prepare` makes topics and groups; `work` sends, consumes by leases and shows all queues,
until it is ended, its sending by SIGUSR1; `watch` tells what the master says of how far its slaves
are behind; `read` tells what is stored in the end, and what was cut off the logs of replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncSimpleConsumer,
    ConsumeFromWhere,
    Message,
    MqError,
)
from aerobee_wire.status import Code
from fault.lease_agent import OUTAGE, report, work

T = TypeVar("T")

BROKER = "group-a"
ORDERS, SHIPMENTS = "orders", "shipments"  # of the Python client, and of an official SDK
LEASING, SDK = "leasing", "sdk"  # consumer groups of each
QUEUES = 4
SENDERS, PAUSE_S = 4, 0.06
WORKERS = 12
AGAIN_S = 0.2  # after a failure
WATCH_S = 0.3
# Beyond what restarts explain: too few replicas, a disk that fails or is full.
FAULTS = OUTAGE | {
    Code.SLAVE_NOT_AVAILABLE,
    Code.FLUSH_SLAVE_TIMEOUT,
    Code.FLUSH_DISK_TIMEOUT,
    Code.DISK_FULL,
    Code.SYSTEM_BUSY,
    Code.NAMESRV_UNREACHABLE,
}


async def prepare(namesrv: str) -> None:
    async with AsyncAdminClient(namesrv) as admin:
        for topic in (ORDERS, SHIPMENTS):
            await patiently(partial(admin.create_topic, topic, queues=QUEUES))
        for group in (LEASING, SDK):
            await patiently(partial(admin.create_group, group, max_attempts=1_000))


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Until the group has a master that answers."""
    while True:
        try:
            return await call()
        except MqError as error:
            report("waiting", code=error.code.name, text=str(error))
            await asyncio.sleep(AGAIN_S)


# ---- while faults come and go ----


async def load(namesrv: str, seed: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stopped.set)
    await asyncio.gather(send(namesrv, stopped), lease(namesrv, random.Random(seed)), show(namesrv))


async def send(namesrv: str, stopped: asyncio.Event) -> None:
    """Several senders, each of one message after the other."""
    numbers = itertools.count()

    async def one_after_the_other() -> None:
        while not stopped.is_set():
            key = f"python-{next(numbers)}"
            began = asyncio.get_running_loop().time()
            try:
                result = await producer.send(Message(ORDERS, key.encode(), keys=[key]))
            except MqError as error:
                if error.code not in FAULTS:
                    raise
                report("not sent", key=key, began=began, code=error.code.name)
            else:
                place = [*result.queue, result.queue_offset]
                report("acknowledged", key=key, began=began, place=place)
            await asyncio.sleep(PAUSE_S)

    async with AsyncProducer(namesrv=namesrv) as producer:
        await asyncio.gather(*(one_after_the_other() for _ in range(SENDERS)))
    report("sending ended")


async def lease(namesrv: str, chance: random.Random) -> None:
    first = ConsumeFromWhere.FIRST_OFFSET
    consumer = AsyncSimpleConsumer(LEASING, namesrv=namesrv, consume_from_where=first)
    consumer.subscribe(ORDERS)
    async with consumer:
        await asyncio.gather(*(work(consumer, chance, FAULTS) for _ in range(WORKERS)))


async def show(namesrv: str) -> None:
    """Tells each message of all queues, as soon as it is shown."""
    async with AsyncPullConsumer(namesrv=namesrv) as consumer:
        queues = [
            queue
            for topic in (ORDERS, SHIPMENTS)
            for queue in await patiently(partial(consumer.fetch_message_queues, topic))
        ]
        consumer.assign(queues)
        while True:
            for message in await consumer.poll():
                report("shown", message)


async def watch(namesrv: str) -> None:
    """Until it is ended; the answers of replicas that are away are waited for."""
    async with AsyncAdminClient(namesrv) as admin:
        while True:
            with contextlib.suppress(MqError):  # nobody answers, or none is registered
                replicas = await admin.replicas(BROKER, silent=[])
                behind = [each.behind_ms for each in replicas if each.behind_ms is not None]
                epochs = [each.epoch for each in replicas if each.role == "master"]
                if epochs:
                    report("behind", epoch=max(epochs), behind_ms=max(behind, default=0))
            await asyncio.sleep(WATCH_S)


# ---- in the end ----


async def read(namesrv: str) -> None:
    async with AsyncPullConsumer(namesrv=namesrv) as consumer:
        for topic in (ORDERS, SHIPMENTS):
            consumer.assign(await consumer.fetch_message_queues(topic))
            # A name server that was away knows the new master some seconds after it is back.
            await patiently(consumer.end_offsets)
            async for message in consumer.read_to_end(timedelta(seconds=20)):
                report("stored", message)
    async with AsyncAdminClient(namesrv) as admin:
        for file in await admin.list_diverged(BROKER):
            position = 0
            while position < file.size:
                page = await admin.read_diverged(file, position)
                for found in page.messages:
                    where = [found.topic, file.replica_id, file.name]
                    report("diverged", where=where, key=found.keys, missing=found.is_missing)
                if page.next_position == position:
                    break
                position = page.next_position


def main(role: str, namesrv: str, seed: str) -> None:
    if role == "work":
        asyncio.run(load(namesrv, seed))
    else:
        asyncio.run({"prepare": prepare, "watch": watch, "read": read}[role](namesrv))


if __name__ == "__main__":
    main(*sys.argv[1:])
