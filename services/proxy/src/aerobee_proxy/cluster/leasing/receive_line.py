"""Receives that wait in line for messages at any broker of their topic.

A line is of one consumer group, topic and filter. However many receives wait in it, each broker is
asked once, by a call that it holds. Where order matters that is a notification: one receive is sent
to that broker to pop there. Else it is a pop, whose messages any receive of the line may have; if
none waits any more, they are given back uncounted at once. As many messages as a receive may have
call two more receives to that broker, because there may be others; so a burst reaches n receives in
log n rounds.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from aerobee.broker.v1.pop_pb2 import PopResponse

from aerobee_wire.status import Code, MqError

RETRY_S = 1.0  # after a broker failed
# A broker that no receive went to for this long is asked although nobody waits, since clients may
# name others all the time, and these always have something.
UNVISITED_S = 1.0
OLD_S = 60.0  # a broker without notifications; it may have been updated since
KEPT_LINES = 256  # idle ones; more are dropped

# Messages of the broker of that name, or True: it has one. Held until then, or until a while is
# over: then False. The second argument: whether messages are wanted now. Raises MqError.
Ask = Callable[[str, bool], Awaitable[PopResponse | bool]]
# Where to pop, or what was popped; None: the time is over.
Found = str | PopResponse | None


class LineKey(NamedTuple):
    consumer_group: str
    topic: str
    subscription: bytes  # of the broker's contract
    ordered: bool
    # Of receives that are not ordered; else 0.
    max_messages: int
    invisible_duration_ms: int


@dataclass(slots=True)
class _Broker:
    """What a line knows of a broker. Times are the loop's."""

    visited_s: float
    asking: asyncio.Task[None] | None = None
    visits: int = 0  # receives that are there now
    has_message: bool = False  # it said so when no receive waited
    retry_s: float = 0.0  # it failed, and is left alone until then
    old_until_s: float = 0.0  # of a version without notifications, and left alone until then


class ReceiveLine:
    """`give_back`: of messages that no receive wants. `max_messages`: as in `LineKey`."""

    def __init__(
        self, ask: Ask, give_back: Callable[[PopResponse], None], max_messages: int
    ) -> None:
        self._ask = ask
        self._give_back = give_back
        self._max_messages = max_messages
        # By the broker that they name, the longest wait first; with their place in the whole line.
        self._waiting: dict[str, dict[asyncio.Future[Found], int]] = {}
        self._places = itertools.count()
        self._brokers: dict[str, _Broker] = {}

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not any(
            broker.asking or broker.visits for broker in self._brokers.values()
        )

    def is_old(self, name: str) -> bool:
        """Whether the broker sends no notifications, because its version is older."""
        broker = self._brokers.get(name)  # not made: a client may name what there is not
        return broker is not None and broker.old_until_s > _now_s()

    def begin(self, named: str, brokers: Sequence[str]) -> str | None:
        """The broker that a new receive visits first; None: there is nothing at the one it names.

        Another than that one if it has had messages for a while and no receive went there.
        """
        first: str | None = None
        now_s = _now_s()
        for name in brokers:
            broker = self._broker(name)
            if name == named:
                continue
            if broker.has_message:
                if first is None or broker.visited_s < self._brokers[first].visited_s:
                    first = name
            elif now_s - broker.visited_s >= UNVISITED_S:
                self._notify(name)
        if first is None and named in brokers:
            own = self._brokers[named]
            if own.asking is None or own.retry_s > now_s:
                first = named
        return None if first is None else self.visit(first)

    def visit(self, name: str) -> str:
        """A receive goes to this broker, and comes back by `end`."""
        broker = self._broker(name)
        broker.visits += 1
        broker.has_message = False
        return name

    async def wait(self, named: str, brokers: Sequence[str], deadline_s: float) -> Found:
        """The broker to visit now, or messages; None when the time is over, in the loop's time.

        Every visit ends with `end`; so does that of `begin`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Found] = loop.create_future()
        self._waiting.setdefault(named, {})[future] = next(self._places)
        for name in brokers:
            self._notify(name)
        timer = loop.call_at(deadline_s, _time_over, future)
        try:
            return await future
        except asyncio.CancelledError:
            found = future.result() if future.done() and not future.cancelled() else None
            if isinstance(found, str):  # another receive may go there
                self.end(found)
            elif found is not None:
                self._give_back(found)
            raise
        finally:
            timer.cancel()
            self._leave(named, future)

    def end(self, name: str, *, full: bool = False, failed: bool = False) -> None:
        """Of a visit. `full`: it brought as many messages as it may have."""
        broker = self._broker(name)
        broker.visits -= 1
        broker.visited_s = _now_s()
        if failed:
            broker.retry_s = broker.visited_s + RETRY_S
        elif full:
            self._send(name, 2)
        if self._anyone_waits() and not broker.visits:
            self._notify(name)

    def close(self) -> None:
        for broker in self._brokers.values():
            if broker.asking is not None:
                broker.asking.cancel()

    # ---- steps ----

    def _broker(self, name: str) -> _Broker:
        broker = self._brokers.get(name)
        if broker is None:
            broker = self._brokers[name] = _Broker(_now_s())
        return broker

    def _notify(self, name: str) -> None:
        broker = self._broker(name)
        if broker.asking is None and not broker.visits and not self.is_old(name):
            broker.asking = asyncio.create_task(self._notified(name, broker))
            broker.asking.add_done_callback(_retrieve)

    async def _notified(self, name: str, broker: _Broker) -> None:
        found: PopResponse | bool = False
        try:
            while True:
                await asyncio.sleep(max(0.0, broker.retry_s - _now_s()))
                asked_s = _now_s()
                try:
                    found = await self._ask(name, self._anyone_waits())
                except MqError as error:
                    broker.retry_s = _now_s() + RETRY_S
                    if error.code is Code.REQUEST_CODE_NOT_SUPPORTED:
                        broker.old_until_s = _now_s() + OLD_S
                        break
                if found or not self._anyone_waits():
                    break
                # A broker without long polls (longPollingEnable) answers at once.
                await asyncio.sleep(max(0.0, asked_s + RETRY_S - _now_s()))
        finally:
            broker.asking = None
        if self.is_old(name):
            for future in self._waiting.get(name, ()):  # they wait there
                if not future.done():
                    future.set_result(self.visit(name))
        elif isinstance(found, PopResponse):
            self._deliver(name, found)
        elif found and not self._send(name, 1) and not broker.visits:
            broker.has_message = True

    def _deliver(self, name: str, answer: PopResponse) -> None:
        """Messages that were popped for whoever waits."""
        broker = self._broker(name)
        future = self._next(name)
        if future is None:
            broker.has_message = not broker.visits
            self._give_back(answer)
            return
        future.set_result(answer)
        broker.visits += 1
        self.end(name, full=answer.message_count >= self._max_messages)

    def _send(self, name: str, count: int) -> int:
        """Sends waiting receives to a broker. Returns how many."""
        for sent in range(count):
            future = self._next(name)
            if future is None:
                return sent
            future.set_result(self.visit(name))
        return count

    def _next(self, name: str) -> asyncio.Future[Found] | None:
        """The longest wait, of those that name this broker if there are any."""
        heads: dict[int, asyncio.Future[Found]] = {}
        for named, waiting in self._waiting.items():
            for future, place in waiting.items():
                if not future.done():
                    if named == name:
                        return future
                    heads[place] = future
                    break
        return heads[min(heads)] if heads else None

    def _anyone_waits(self) -> bool:
        return any(not future.done() for line in self._waiting.values() for future in line)

    def _leave(self, named: str, future: asyncio.Future[Found]) -> None:
        waiting = self._waiting[named]
        del waiting[future]
        if not waiting:
            del self._waiting[named]


class ReceiveLines:
    """`make`: an empty line."""

    def __init__(self, make: Callable[[LineKey], ReceiveLine]) -> None:
        self._make = make
        self._lines: dict[LineKey, ReceiveLine] = {}
        self._clear_at = KEPT_LINES

    def line(self, key: LineKey) -> ReceiveLine:
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= self._clear_at:
                used = {key: line for key, line in self._lines.items() if not line.is_idle}
                self._lines, self._clear_at = used, 2 * len(used) + KEPT_LINES
            line = self._lines[key] = self._make(key)
        return line

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _time_over(future: asyncio.Future[Found]) -> None:
    if not future.done():
        future.set_result(None)


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        structlog.get_logger().error("notification_failed", exc_info=error)
