"""The rows of the bench, and the program that runs a client.

A client is a process of its own, `python -m bench.peers.clients.NAME`. It prints {"up": true}, then
reads one JSON object a line, {"row": NAME, …}, and answers each with one: the figures of the row,
{"refused": why} if messages are missing, or {"absent": why} if the product cannot do it. Standard
library only: most clients run in an environment of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from bench.peers.cost import Window
from bench.peers.tally import Tally, WrongCount, age_ms, body, check_stored, number_of

ROW_TIMEOUT_S = 600.0
SETTLE_TIMEOUT_S = 60.0  # until the server counts what was done
READY_TIMEOUT_S = 120.0
POLL_S = 0.02
BEGIN_S = 0.3  # of a row of sends, not measured: routes, connections
BATCH = 128
FAILS_EVERY = 10  # in the row of dead letters
ATTEMPTS = 3

See = Callable[[bytes], object]
Handle = Callable[[bytes], bool]  # False: the message failed and is to be delivered again
Figures = dict[str, Any]


class Absent(Exception):
    """The product or its client has nothing for this row."""


class Client(ABC):
    """One client of one product. A queue is a topic, stream or queue of the product."""

    title: str
    how: dict[str, str]  # row → how this client does it, where that is not obvious
    drained = 50_000  # messages of the rows that empty a queue
    prefix = ""  # of its queues, where another client of the same server has queues too

    def __init__(self, address: dict[str, Any]) -> None:
        self.address = address
        # A client whose `drain` returns later than its last settlement calls this at it.
        self.on_settled: Callable[[], None] = lambda: None

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def create(self, queue: str) -> None: ...

    @abstractmethod
    async def publish(self, queue: str, body: bytes) -> None:
        """Send one message; return when it is acknowledged."""

    async def publish_batch(self, queue: str, bodies: list[bytes]) -> None:
        """Send messages in the client's own kind of batch; return when all are acknowledged."""
        raise Absent("no batches")

    @abstractmethod
    async def stored(self, queue: str) -> int:
        """Return the number of messages that the server has stored."""

    @abstractmethod
    async def unsettled(self, queue: str) -> int:
        """Return how many messages the server does not count as consumed."""

    @abstractmethod
    async def drain(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        """Receive and settle messages until `is_done`."""

    def pushing(self, queue: str, see: See) -> AbstractAsyncContextManager[None]:
        """Run a handler for each message, and settle the message after it."""
        raise Absent("no push consumer")

    def failing(self, queue: str, handle: Handle) -> AbstractAsyncContextManager[None]:
        """Run a handler that rejects messages. Each is delivered at most `ATTEMPTS` times."""
        raise Absent("no redelivery with a limit")

    async def create_failing(self, queue: str) -> None:
        """Create a queue for `failing`, whose dead letters are kept."""
        await self.create(queue)

    async def dead_count(self, queue: str) -> int:
        raise NotImplementedError

    async def drain_dead(self, queue: str, see: See, is_done: Callable[[], bool]) -> None:
        raise NotImplementedError

    # ---- sending ----

    async def send(self, queue: str, numbers: Iterator[int], in_flight: int, end: float) -> int:
        """Send until the clock shows `end`, and return how many were acknowledged.

        Each message is awaited by a caller of its own.
        """
        acknowledged = 0

        async def caller() -> None:
            nonlocal acknowledged
            while time.perf_counter() < end:
                await self.publish(queue, body(next(numbers)))
                acknowledged += 1

        await asyncio.gather(*(caller() for _ in range(in_flight)))
        return acknowledged

    async def send_batches(self, queue: str, numbers: Iterator[int], end: float) -> int:
        """Send batches until the clock shows `end`, four of them under way."""
        acknowledged = 0

        async def caller() -> None:
            nonlocal acknowledged
            while time.perf_counter() < end:
                bodies = [body(number) for number in itertools.islice(numbers, BATCH)]
                await self.publish_batch(queue, bodies)
                acknowledged += len(bodies)

        await asyncio.gather(*(caller() for _ in range(4)))
        return acknowledged

    async def fill(self, queue: str, count: int) -> None:
        """Store the messages 0 … count - 1."""
        numbers = iter(range(count))

        async def caller() -> None:
            for number in numbers:
                await self.publish(queue, body(number))

        await asyncio.gather(*(caller() for _ in range(256)))


class Rows:
    """The rows of the bench, run by a client."""

    def __init__(self, client: Client, servers: list[int]) -> None:
        self._client = client
        self._servers = servers

    async def ready(self) -> Figures:
        """Try until one message is acknowledged."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                await self._client.open()
                await self._client.create(self._queue("ready"))
                await self._client.publish(self._queue("ready"), body(0))
                return {}
            except Exception:
                if time.monotonic() > deadline:
                    raise
                await self._close()
                await asyncio.sleep(0.05)

    async def _close(self) -> None:
        """Close a client that may be half open."""
        try:
            await self._client.close()
        except Exception:
            traceback.print_exc()

    async def warm(self, seconds: float) -> Figures:
        """Send and receive without measuring, for compilers of virtual machines."""
        queue = self._queue("warm")
        await self._client.create(queue)
        end = time.perf_counter() + seconds
        numbers = itertools.count()
        count = await self._client.send(queue, numbers, 64, end)
        tally = Tally(next(numbers))
        goal = min(count, self._client.drained)
        await self._client.drain(queue, tally.see, lambda: tally.distinct >= goal)
        return {}

    async def sends(self, name: str, in_flight: int, seconds: float) -> Figures:
        queue, numbers = self._queue(name), itertools.count()
        await self._client.create(queue)
        begin = time.perf_counter() + BEGIN_S
        before = await self._client.send(queue, numbers, in_flight, begin)
        with Window(self._servers) as window:
            end = time.perf_counter() + seconds
            count = await self._client.send(queue, numbers, in_flight, end)
        await self._check_stored(queue, before + count)
        return figures(window, count) | {"sent": before + count}

    async def batches(self, seconds: float) -> Figures:
        queue, numbers = self._queue("batches"), itertools.count()
        await self._client.create(queue)
        begin = time.perf_counter() + BEGIN_S
        before = await self._client.send_batches(queue, numbers, begin)
        with Window(self._servers) as window:
            end = time.perf_counter() + seconds
            count = await self._client.send_batches(queue, numbers, end)
        await self._check_stored(queue, before + count)
        return figures(window, count)

    async def drain(self, name: str, share: float) -> Figures:
        """Measure from the first message on, so that the start of a consumer does not count."""
        queue = self._queue(name)
        tally, window = await self._filled(queue, share), Window(self._servers)

        def see(message: bytes) -> None:
            window.start()
            tally.see(message)

        self._client.on_settled = window.stop
        await self._client.drain(queue, see, lambda: tally.is_complete)
        window.stop()
        await self._check_settled(queue, tally)
        return figures(window, tally.distinct, tally)

    async def push(self, share: float) -> Figures:
        """Measure from the first message to the last one."""
        queue = self._queue("push")
        tally, window = await self._filled(queue, share), Window(self._servers)

        def see(message: bytes) -> None:
            window.start()
            tally.see(message)
            if tally.is_complete:
                window.stop()

        async with self._client.pushing(queue, see):
            await _until_complete(tally)
            await self._check_settled(queue, tally)
        return figures(window, tally.distinct, tally)

    async def paced(self, rate: int, seconds: float) -> Figures:
        """Measure messages at a steady rate, from the call of the send to the handler."""
        warm = rate
        count = int(rate * seconds)
        tally, ages = Tally(warm + count), list[float]()

        def see(message: bytes) -> None:
            tally.see(message)
            ages.append(age_ms(message))

        queue = self._queue("paced")
        await self._client.create(queue)
        async with self._client.pushing(queue, see):
            await self._pace(queue, range(warm), rate)
            await _until_complete(tally, warm)
            ages.clear()
            with Window(self._servers) as window:
                await self._pace(queue, range(warm, warm + count), rate)
                await _until_complete(tally)
        tally.check()
        ages.sort()
        percentiles = {f"p{percent}_ms": ages[len(ages) * percent // 100] for percent in (50, 99)}
        return figures(window, count, tally) | percentiles

    async def letters(self, count: int) -> Figures:
        """Let a tenth of the messages fail at each delivery, until they are dead letters."""
        tally, failed = Tally(count), range(0, count, FAILS_EVERY)
        settled, window = 0, Window(self._servers)

        def handle(message: bytes) -> bool:
            nonlocal settled
            window.start()
            number = tally.see(message)
            if number % FAILS_EVERY == 0:
                return False
            settled += tally.times(number) == 1
            return True

        queue = self._queue("letters")
        await self._client.create_failing(queue)
        await self._client.fill(queue, count)

        async def is_done() -> bool:
            if settled < count - len(failed):
                return False
            return await self._client.dead_count(queue) >= len(failed)

        async with self._client.failing(queue, handle):
            await _until(is_done)
            window.stop()
        tally.check()
        wrong = [number for number in failed if tally.times(number) != ATTEMPTS]
        if wrong:
            times = tally.times(wrong[0])
            raise WrongCount(
                f"{len(wrong)} failing messages were not delivered {ATTEMPTS} times: "
                f"{wrong[0]} came {times} times"
            )
        dead = Tally(count)
        await self._client.drain_dead(queue, dead.see, lambda: dead.distinct >= len(failed))
        if any(dead.times(number) == 0 for number in failed):
            raise WrongCount("another message than the failed ones is a dead letter")
        return figures(window, count)

    def _queue(self, row: str) -> str:
        return self._client.prefix + row.removeprefix("v2_")

    async def _filled(self, queue: str, share: float) -> Tally:
        count = max(1, int(self._client.drained * share))
        await self._client.create(queue)
        await self._client.fill(queue, count)
        await self._check_stored(queue, count)
        return Tally(count)

    async def _pace(self, queue: str, numbers: range, rate: int) -> None:
        began, sends = time.perf_counter(), []
        for place, number in enumerate(numbers):
            wait = began + place / rate - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            sends.append(asyncio.ensure_future(self._client.publish(queue, body(number))))
        await asyncio.gather(*sends)

    async def _check_stored(self, queue: str, acknowledged: int) -> None:
        """Raise WrongCount if messages are missing.

        A server may count a message a moment after it acknowledged it.
        """

        async def all_stored() -> bool:
            return await self._client.stored(queue) >= acknowledged

        await _until(all_stored, SETTLE_TIMEOUT_S)
        check_stored(acknowledged, await self._client.stored(queue))

    async def _check_settled(self, queue: str, tally: Tally) -> None:
        tally.check()
        left = 0

        async def all_settled() -> bool:
            nonlocal left
            left = await self._client.unsettled(queue)
            return left == 0

        if not await _until(all_settled, SETTLE_TIMEOUT_S):
            raise WrongCount(f"{left:,} messages were received, but the server has them unsettled")

    async def run(self, row: str, options: dict[str, Any]) -> Figures:
        """Run a row. Raises WrongCount, Absent, or an error of the client."""
        kind = row.removeprefix("v2_").partition("_")[0]
        if kind in ("send", "syncs"):
            return await self.sends(row, options["in_flight"], options["seconds"])
        if kind == "drain":
            return await self.drain(row, options["share"])
        others: dict[str, Callable[..., Coroutine[Any, Any, Figures]]] = {
            "ready": self.ready,
            "warm": self.warm,
            "batches": self.batches,
            "push": self.push,
            "paced": self.paced,
            "letters": self.letters,
        }
        return await others[kind](**options)


def figures(window: Window, messages: int, tally: Tally | None = None) -> Figures:
    return {
        "messages": messages,
        "seconds": window.seconds,
        "servers_user_s": window.servers.user_s,
        "servers_system_s": window.servers.system_s,
        "client_user_s": window.client.user_s,
        "client_system_s": window.client.system_s,
        "repeated": tally.repeated if tally else 0,
    }


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], end: Callable[[], object]) -> AsyncIterator[None]:
    """Run `work`, which ends after `end`. Its failure ends the block."""
    async with asyncio.TaskGroup() as group:
        group.create_task(work)
        try:
            yield
        finally:
            end()


async def _until(condition: Callable[[], Awaitable[bool]], timeout_s: float = math.inf) -> bool:
    """Poll a condition until it holds. Return False if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not (holds := await condition()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    return holds


async def _until_complete(tally: Tally, goal: int | None = None) -> None:
    async def is_complete() -> bool:
        return tally.is_complete if goal is None else tally.distinct == goal

    await _until(is_complete)


def _text(error: BaseException) -> str:
    """Return the text of an error, or of the first one in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, WrongCount) else f"{type(error).__name__}: {error}"


async def _serve(
    make: Callable[[dict[str, Any]], Client], answer: Callable[[Figures], None]
) -> None:
    answer({"up": True})
    rows: Rows | None = None
    client: Client
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        try:
            if rows is None:
                client = make(command["address"])
                rows = Rows(client, command["servers"])
            command.pop("address", None)
            command.pop("servers", None)
            if command["row"] == "about":
                await client.open()
                answer({"title": client.title, "how": client.how})
                continue
            async with asyncio.timeout(ROW_TIMEOUT_S):
                answer(await rows.run(command.pop("row"), command))
        except WrongCount as error:
            answer({"refused": str(error)})
        except Absent as error:
            answer({"absent": str(error)})
        except Exception as error:
            traceback.print_exc()
            answer({"refused": _text(error)})
    if rows is not None:
        await client.close()


def main(make: Callable[[dict[str, Any]], Client]) -> None:
    """Serve the bench until the end of stdin. Output of libraries goes to stderr."""
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)

        def answer(found: Figures) -> None:
            print(json.dumps(found), file=output, flush=True)

        asyncio.run(_serve(make, answer))
        output.flush()
    os._exit(0)  # threads of a library do not keep the process


__all__ = ["ATTEMPTS", "BATCH", "Absent", "Client", "Handle", "See", "beside", "main", "number_of"]
