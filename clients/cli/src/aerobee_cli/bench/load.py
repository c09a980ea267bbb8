"""Send messages at a rate, receive them in groups, and count what arrived.

This module knows no protocol and no cluster: a `Driver` sends and receives. Sends run in lanes. A
lane has one send in flight, and all its messages go to one queue, so a group must receive them in
the order of their numbers.
"""

from __future__ import annotations

import asyncio
import math
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from aerobee_cli.bench.scratch import Scratch
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import (
        AsyncAdminClient,
        AsyncProducer,
        AsyncPullConsumer,
        AsyncSimpleConsumer,
        MessageQueue,
    )


# The bounds of neighbouring buckets differ by 1 %, so a percentile is at most 1 % too high.
STEP = math.log(1.01)
LEAST_MS = 0.001  # shorter durations count as this one


class Latencies:
    """Durations in milliseconds. `max_ms` is the longest, or None if there is none."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.max_ms: float | None = None

    def add(self, milliseconds: float) -> None:
        self._buckets[math.ceil(math.log(max(milliseconds, LEAST_MS)) / STEP)] += 1
        self.count += 1
        if self.max_ms is None or milliseconds > self.max_ms:
            self.max_ms = milliseconds

    def percentile(self, share: float) -> float | None:
        """Return the duration that `share` of the durations (0 to 1) do not exceed.

        Returns None without durations. The result is never above `max_ms`.
        """
        left = math.ceil(self.count * share)
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                assert self.max_ms is not None
                return min(math.exp(bucket * STEP), self.max_ms)
        return None


HEAD = struct.Struct(
    ">I"  # lane
    "Q"  # number of the message, from 0 in each run
    "d"  # when its send began or was due, in seconds of the event loop's clock
)
assert HEAD.size == 20
PROGRESS_S = 0.5  # between two calls of `show`
PAUSE_S = 0.5  # after a failed send or receive, so that a broken broker is not flooded
LOOK_S = 0.05  # between two looks at the messages that are still missing
_ACKNOWLEDGED = 1


class Driver(Protocol):
    """Sends and receives by one protocol."""

    receivers: int  # receives of a group at once

    async def send(self, lane: int, body: bytes) -> None:
        """Store a message in the queue of a lane. Raises MqError."""

    async def receive(self, group: str) -> Sequence[bytes]:
        """Wait a moment for messages of a group, settle them, and return their bodies.

        Raises MqError.
        """


@dataclass(frozen=True, slots=True)
class Load:
    """The load. One of `messages` and `duration_s` ends the sends; the other one is None.

    `rate` is the number of messages a second, or None for as many as `in_flight` lanes can send.
    `wait_s` limits the wait for missing messages, from the last arrival on.
    """

    groups: Sequence[str]
    size: int
    in_flight: int
    messages: int | None = None
    duration_s: float | None = None
    rate: float | None = None
    wait_s: float = 30.0


class Arrived:
    """The messages that a group received.

    `messages` counts each message once, `confirmed` those of them whose send was acknowledged.
    """

    def __init__(self, group: str, lanes: int) -> None:
        self.group = group
        self.messages = 0
        self.confirmed = 0
        self.twice = 0
        self.out_of_order = 0
        self.last_s = 0.0
        self.error = ""  # of the last failed receive; empty after a receive succeeded
        self.latencies = Latencies()
        self._seen = bytearray()
        self._highest = [-1] * lanes

    def has(self, number: int) -> bool:
        return number < len(self._seen) and bool(self._seen[number])

    def add(self, lane: int, number: int, latency_s: float, now_s: float) -> bool:
        """Count an arrival. Return whether it is the first of this message."""
        if self.has(number):
            self.twice += 1
            return False
        if number >= len(self._seen):
            self._seen.extend(bytes(max(number + 1, 2 * len(self._seen)) - len(self._seen)))
        self._seen[number] = 1
        self.messages += 1
        if number < self._highest[lane]:
            self.out_of_order += 1
        self._highest[lane] = max(self._highest[lane], number)
        self.latencies.add(latency_s * 1_000)
        self.last_s = now_s
        return True


@dataclass(slots=True)
class Outcome:
    """The state and the result of a run. A message is sent if its send was acknowledged."""

    load: Load
    began_s: float
    arrived: list[Arrived]
    sent: int = 0
    failed: int = 0
    error: str = ""  # of the first failed send
    sent_s: float = 0.0  # when the last send was acknowledged
    elapsed_s: float = 0.0
    interrupted: bool = False
    latencies: Latencies = field(default_factory=Latencies)
    state: bytearray = field(default_factory=bytearray)  # by number of the message

    def lost(self, arrived: Arrived) -> int:
        """Return how many acknowledged messages a group has not received."""
        return self.sent - arrived.confirmed

    @property
    def is_complete(self) -> bool:
        """Return whether all sends succeeded, and each group has all messages."""
        return not self.failed and not any(map(self.lost, self.arrived))

    @property
    def send_rate(self) -> float | None:
        return _rate(self.sent, self.sent_s - self.began_s)

    def receive_rate(self, arrived: Arrived) -> float | None:
        return _rate(arrived.messages, arrived.last_s - self.began_s)


def _rate(messages: int, seconds: float) -> float | None:
    return messages / seconds if messages and seconds > 0 else None


class Run:
    """A run of a load. `stop` ends its sends, and then its wait for messages."""

    def __init__(self, driver: Driver, load: Load) -> None:
        self._driver = driver
        self._load = load
        self._loop = asyncio.get_running_loop()
        arrived = [Arrived(group, load.in_flight) for group in load.groups]
        self.outcome = Outcome(load, self._loop.time(), arrived)
        self._next = 0
        self._no_sends = asyncio.Event()
        self._no_wait = asyncio.Event()
        # Random, so that no layer makes the messages shorter than they claim to be.
        self._filling = os.urandom(max(0, load.size - HEAD.size))

    def stop(self) -> None:
        """End the sends; if they are ended already, end the wait for missing messages."""
        if self._no_sends.is_set():
            self._no_wait.set()
        self.outcome.interrupted = True
        self._no_sends.set()

    async def run(self, show: Callable[[Outcome], None]) -> Outcome:
        """Send, and wait until all messages arrived, or none arrives for `wait_s`.

        `show` gets the state from time to time.
        """
        outcome, load = self.outcome, self._load
        outcome.began_s = self._loop.time()
        background = [
            asyncio.create_task(self._receive(arrived))
            for arrived in outcome.arrived
            for _ in range(self._driver.receivers)
        ]
        background.append(asyncio.create_task(self._show(show)))
        sends = [asyncio.create_task(self._send_in(lane)) for lane in range(load.in_flight)]
        watch = asyncio.create_task(self._no_wait.wait())
        try:
            all_sent = asyncio.gather(*sends)
            await asyncio.wait((all_sent, watch), return_when=asyncio.FIRST_COMPLETED)
            if all_sent.done():
                await all_sent  # raises the error of a lane
            self._no_sends.set()
            await self._until_arrived()
        finally:
            tasks = [*sends, *background, watch]
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
        outcome.elapsed_s = self._loop.time() - outcome.began_s
        return outcome

    async def _show(self, show: Callable[[Outcome], None]) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            self.outcome.elapsed_s = self._loop.time() - self.outcome.began_s
            show(self.outcome)

    # ---- sends ----

    def _take(self) -> tuple[int, float] | None:
        """Return the number of the next message and when it is due, or None after the last one."""
        load, number = self._load, self._next
        due_s = now_s = self._loop.time()
        if load.rate is not None:
            due_s = self.outcome.began_s + number / load.rate
        if self._no_sends.is_set() or number == load.messages:
            return None
        if load.duration_s is not None:
            last_s = self.outcome.began_s + load.duration_s
            if max(due_s, now_s) >= last_s:
                return None
        self._next = number + 1
        self.outcome.state.append(0)
        return number, due_s

    async def _send_in(self, lane: int) -> None:
        while (taken := self._take()) is not None:
            number, due_s = taken
            if due_s > self._loop.time() and await self._stopped_before(due_s):
                return
            # A message that is late for its rate waited for a free lane: that time counts too.
            began_s = min(due_s, self._loop.time())
            try:
                await self._driver.send(lane, HEAD.pack(lane, number, began_s) + self._filling)
            except MqError as error:
                self.outcome.failed += 1
                self.outcome.error = self.outcome.error or error.message
                await self._stopped_before(self._loop.time() + PAUSE_S)
            else:
                self._acknowledged(number, began_s)

    def _acknowledged(self, number: int, began_s: float) -> None:
        outcome, now_s = self.outcome, self._loop.time()
        outcome.state[number] = _ACKNOWLEDGED
        outcome.sent += 1
        outcome.sent_s = now_s
        outcome.latencies.add((now_s - began_s) * 1_000)
        for arrived in outcome.arrived:  # a message may arrive before its acknowledgement
            arrived.confirmed += arrived.has(number)

    async def _stopped_before(self, moment_s: float) -> bool:
        """Wait until a time of the loop's clock. Return True at once if the sends are stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(moment_s):
                await self._no_sends.wait()
        return self._no_sends.is_set()

    # ---- arrivals ----

    async def _receive(self, arrived: Arrived) -> None:
        while True:
            try:
                bodies = await self._driver.receive(arrived.group)
            except MqError as error:
                arrived.error = error.message
                await asyncio.sleep(PAUSE_S)
                continue
            arrived.error = ""
            now_s = self._loop.time()
            for body in bodies:
                lane, number, began_s = HEAD.unpack_from(body)
                if arrived.add(lane, number, now_s - began_s, now_s):
                    arrived.confirmed += self.outcome.state[number]

    async def _until_arrived(self) -> None:
        outcome = self.outcome
        ended_s = self._loop.time()
        while any(map(outcome.lost, outcome.arrived)) and not self._no_wait.is_set():
            newest_s = max(ended_s, *(each.last_s for each in outcome.arrived))
            if self._loop.time() - newest_s > self._load.wait_s:
                return
            await asyncio.sleep(LOOK_S)


# ---- the check ----
#
# Send one message through each queue of each broker, and read it again.


CHECK_S = 0.02  # between two reads of a message that is not visible yet


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
                await asyncio.sleep(CHECK_S)
    found.problem = f"receive: {problem}"
    return found


def failed(found: Sequence[QueueCheck]) -> list[QueueCheck]:
    """Return the results with a problem."""
    return [each for each in found if each.problem]


# ---- clients ----
#
# Send and receive with the classic client: one producer, and one consumer for each group.


PRODUCER_GROUP = "aerobee-bench"
WAIT = timedelta(seconds=1)
POLLED = 1_000  # messages of a poll
LEASED = 32  # messages of a receive: a broker returns no more
LEASING_RECEIVERS = 4  # receives of a group that wait at once


class Pulling:
    """The driver whose groups pull, as classic consumers do. Each group has one member."""

    receivers = 1

    def __init__(self, producer: AsyncProducer, queues: Sequence[MessageQueue]) -> None:
        self._producer = producer
        self._queues = queues
        self._consumers: dict[str, AsyncPullConsumer] = {}

    async def join(self, scratch: Scratch, namesrv: str, stack: AsyncExitStack) -> None:
        """Start the consumers, which `stack` closes. Raises MqError."""
        from aerobee_client import AsyncPullConsumer, ConsumeFromWhere

        for group in scratch.groups:
            consumer = AsyncPullConsumer(
                group, namesrv=namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
            )
            await consumer.subscribe(scratch.topic)
            self._consumers[group] = await stack.enter_async_context(consumer)

    async def send(self, lane: int, body: bytes) -> None:
        from aerobee_client import Message

        queue = self._queues[lane % len(self._queues)]
        await self._producer.send(Message(queue.topic, body), queue=queue)

    async def receive(self, group: str) -> Sequence[bytes]:
        return [message.body for message in await self._consumers[group].poll(POLLED, WAIT)]


class Leasing(Pulling):
    """The driver whose groups lease messages, as the official SDKs do."""

    receivers = LEASING_RECEIVERS

    def __init__(self, producer: AsyncProducer, queues: Sequence[MessageQueue]) -> None:
        super().__init__(producer, queues)
        self._lessees: dict[str, AsyncSimpleConsumer] = {}

    async def join(self, scratch: Scratch, namesrv: str, stack: AsyncExitStack) -> None:
        """Start the consumers, which `stack` closes. Raises MqError."""
        from aerobee_client import AsyncSimpleConsumer, ConsumeFromWhere

        for group in scratch.groups:
            consumer = AsyncSimpleConsumer(
                group, namesrv=namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
            )
            await consumer.subscribe(scratch.topic)
            self._lessees[group] = await stack.enter_async_context(consumer)

    async def receive(self, group: str) -> Sequence[bytes]:
        consumer = self._lessees[group]
        messages = await consumer.receive(LEASED, wait=WAIT)
        bodies = [message.body for message in messages]
        await consumer.ack(messages)
        return bodies
