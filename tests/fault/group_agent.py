"""A process that is one member of a consumer group, or a producer, to be frozen and killed:
`python -m fault.group_agent KIND NAMESRV SEED`. It prints a line of JSON for each thing that
happened (`lease_agent.tell`), and ends by SIGTERM, or by an error that no fault explains.

KIND: concurrent, orderly, pull or simple, a member of the group of that name, which reads EVENTS
and STEPS; or accumulating or single, a producer with and without accumulation, which sends to both.
A member that cannot start because no name server answers is started again, as by a supervisor.

SIGUSR1 makes the next call of a listener (of the program that polls) block for BLOCK_S, SIGUSR2
for LONG_BLOCK_S.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from hashlib import blake2s
from typing import Any

from aerobee_client import (
    AsyncProducer,
    AsyncSimpleConsumer,
    ConsumeFromWhere,
    Interceptor,
    Message,
    MessageQueue,
    MqError,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
)
from aerobee_client.options.consumer import ConsumerSettings
from aerobee_wire.status import Code
from fault.lease_agent import OUTAGE, report, run
from support.client.message_group import Group

EVENTS, STEPS = "events", "steps"  # without and with message groups
FIRST = ConsumeFromWhere.FIRST_OFFSET
BLOCK_S, LONG_BLOCK_S = 3.0, 75.0
FAILING = 0.01  # calls of a listener that raise
CALL_S = 0.001  # of a listener
LEASE_WORKERS = 8
START_AGAIN_S = 0.5
# A producer: message groups, and the pause of each between its turns; plain sends at a time.
GROUPS, GROUP_PAUSE_S = 12, 2.5
PLAIN, PLAIN_PAUSE_S = 20, 0.4
TIMEOUTS_MS = (300, 1_000, 5_000)


def content(seed: str, key: str) -> str:
    """The body of the message with this key: known from the key, and hardly by accident."""
    return blake2s(f"{seed} {key}".encode()).hexdigest()


# ---- members ----


class Blocks:
    """What SIGUSR1 and SIGUSR2 ask for, and SIGTERM. Made in the main thread."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._seconds = 0.0
        signal.signal(signal.SIGTERM, lambda *_: self.stop.set())
        signal.signal(signal.SIGUSR1, lambda *_: self._ask(BLOCK_S))
        signal.signal(signal.SIGUSR2, lambda *_: self._ask(LONG_BLOCK_S))
        report("loaded")  # it may be told to stop

    def _ask(self, seconds: float) -> None:
        self._seconds = seconds

    def pass_through(self) -> None:
        """Blocks if that is asked for."""
        seconds, self._seconds = self._seconds, 0.0
        if seconds:
            report("blocked")
            time.sleep(seconds)


class Rebalances(Interceptor):
    def after_rebalance(
        self,
        consumer_group: str,
        acquired: frozenset[MessageQueue],
        released: frozenset[MessageQueue],
    ) -> None:
        report("rebalanced", released=[list(queue) for queue in released])


def consume(blocks: Blocks, chance: random.Random, message: ReceivedMessage) -> None:
    """A listener."""
    report("begin", message, stored_ms=message.store_timestamp_ms)
    blocks.pass_through()
    time.sleep(CALL_S)
    if chance.random() < FAILING:
        report("failed", message)
        raise ValueError("by chance")
    report("end", message)


def push(namesrv: str, chance: random.Random, *, orderly: bool) -> None:
    blocks = Blocks()
    settings: ConsumerSettings = {
        "concurrency": 8,
        "consume_timeout": timedelta(seconds=30),
        "consume_from_where": FIRST,
        "interceptors": [Rebalances()],
    }
    if orderly:
        settings |= {"orderly": True, "suspend_time": timedelta(seconds=0.1)}

    def start() -> PushConsumer:
        consumer = PushConsumer(
            "orderly" if orderly else "concurrent",
            partial(consume, blocks, chance),
            namesrv=namesrv,
            **settings,
        )
        consumer.subscribe(EVENTS)
        consumer.subscribe(STEPS)
        consumer.start()
        return consumer

    consumer = started(start, blocks)
    if consumer is not None:
        with consumer:
            report("started")
            blocks.stop.wait()


def pull(namesrv: str) -> None:
    """What a poll returned is consumed when the next poll begins: its messages end before it."""
    blocks = Blocks()

    def start() -> PullConsumer:
        consumer = PullConsumer(
            "pull", namesrv=namesrv, consume_from_where=FIRST, interceptors=[Rebalances()]
        )
        consumer.subscribe(EVENTS)
        consumer.subscribe(STEPS)
        consumer.start()
        return consumer

    consumer = started(start, blocks)
    if consumer is None:
        return
    with consumer:
        report("started")
        while not blocks.stop.is_set():
            messages = consumer.poll(32, timedelta(seconds=1))
            polled = time.monotonic()
            for message in messages:
                report("begin", message, stored_ms=message.store_timestamp_ms, polled=polled)
                blocks.pass_through()
                time.sleep(CALL_S)
                report("end", message)
        try:
            consumer.commit()
        except MqError as error:  # the next owner gets the last poll again
            if error.code not in OUTAGE:
                raise


def started(start: Callable[[], Any], blocks: Blocks) -> Any:
    """What `start` returns; None: stopped before. Without a name server it is started again."""
    while not blocks.stop.is_set():
        try:
            return start()
        except MqError as error:
            if error.code is not Code.NAMESRV_UNREACHABLE:
                raise
            report("not started", code=error.code.name)
            blocks.stop.wait(START_AGAIN_S)
    return None


async def simple(namesrv: str, chance: random.Random) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, sys.exit)
    report("loaded")
    while True:
        consumer = AsyncSimpleConsumer("simple", namesrv=namesrv, consume_from_where=FIRST)
        consumer.subscribe(EVENTS)
        consumer.subscribe(STEPS)
        try:
            await consumer.start()
        except MqError as error:
            if error.code is not Code.NAMESRV_UNREACHABLE:
                raise
            report("not started", code=error.code.name)
            await asyncio.sleep(START_AGAIN_S)
        else:
            return await run(consumer, chance, LEASE_WORKERS)


# ---- producers ----


async def produce(namesrv: str, seed: str, kind: str) -> None:
    """Until SIGTERM; then what is under way is waited for."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    report("loaded")
    chance = random.Random(f"{seed} {kind}")
    async with AsyncProducer(kind, namesrv=namesrv, accumulate=kind == "accumulating") as producer:
        await asyncio.gather(
            send_plain(producer, stop, seed, kind),
            *(
                message_group(f"{kind}-{number}", seed, chance).send(producer, stop)
                for number in range(GROUPS)
            ),
        )


def message_group(name: str, seed: str, chance: random.Random) -> Group:
    def message_of(topic: str, group: str, number: int) -> Message:
        key = f"{group}/{number}"
        body = content(seed, key).encode()
        return Message(topic, body, keys=[key], message_group=group)

    return Group(
        name,
        STEPS,
        chance,
        message_of=message_of,
        on_stored=lambda number, result: report_stored(f"{name}/{number}", result),
        timeouts_ms=TIMEOUTS_MS,
        pause_s=GROUP_PAUSE_S,
    )


async def send_plain(producer: AsyncProducer, stop: asyncio.Event, seed: str, kind: str) -> None:
    number = 0
    while not stop.is_set():
        keys = [f"{kind}/{number + each}" for each in range(PLAIN)]
        number += PLAIN
        messages = [Message(EVENTS, content(seed, key).encode(), keys=[key]) for key in keys]
        outcomes = await asyncio.gather(*map(producer.send, messages), return_exceptions=True)
        for key, outcome in zip(keys, outcomes, strict=True):
            if isinstance(outcome, SendResult):
                report_stored(key, outcome)
            elif isinstance(outcome, MqError) and outcome.code in OUTAGE:
                report("not sent", code=outcome.code.name)
            else:
                raise RuntimeError(f"{key} was not sent") from outcome
        await asyncio.sleep(PLAIN_PAUSE_S)


def report_stored(key: str, result: SendResult) -> None:
    report("acknowledged", key=key, place=[*result.queue, result.queue_offset])


def main(kind: str, namesrv: str, seed: str) -> None:
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s {kind} %(message)s")
    chance = random.Random(seed)
    if kind in ("concurrent", "orderly"):
        push(namesrv, chance, orderly=kind == "orderly")
    elif kind == "pull":
        pull(namesrv)
    elif kind == "simple":
        asyncio.run(simple(namesrv, chance))
    else:
        asyncio.run(produce(namesrv, seed, kind))


if __name__ == "__main__":
    main(*sys.argv[1:])
