"""Receives that wait in line for messages at any broker of their topic.

A line holds the receives of one consumer group, topic and filter. Regardless of the number of
waiting receives, each broker is asked once, by a call that it holds:

    ordered, or no receive waits   a notification; a receive then goes to that broker to pop
    else                           a pop; any receive of the line may have its messages

If no receive waits any more, popped messages are given back at once, without counting a delivery.

If a broker returned as many messages as a receive may have, it may have more. Then two more
receives are sent to it, so that a burst reaches n receives in log n rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from aerobee.broker.v1.pop_pb2 import PopResponse

from aerobee_cluster.receiving import RETRY_S
from aerobee_cluster.waiting_receives import WaitingReceives
from aerobee_wire.status import Code, MqError

# A broker that no receive has visited for this long is asked even if no receive waits. Otherwise,
# its messages would stay there while clients name other brokers that always have messages.
UNVISITED_S = 1.0
OLD_S = 60.0  # pause for a broker without notifications; it may have been updated after that
KEPT_LINES = 256  # idle lines that are kept; more are dropped

# (broker name, whether a receive wants messages now) → messages, or True: the broker has a message.
# The broker holds the call until then. False: it had no message in the time of the call. Raises
# MqError.
Ask = Callable[[str, bool], Awaitable[PopResponse | bool]]
# The broker to pop from, or popped messages; None: the time is over.
Found = str | PopResponse | None


class LineKey(NamedTuple):
    consumer_group: str
    topic: str
    subscription: bytes  # a serialized Subscription of the broker's contract
    ordered: bool
    # Both are 0 for ordered receives.
    max_messages: int
    invisible_duration_ms: int


@dataclass(slots=True)
class _Broker:
    """The state of one broker in a line. Times are those of the event loop."""

    visited_s: float
    asking: asyncio.Task[None] | None = None
    visits: int = 0  # receives that pop there now
    has_message: bool = False  # reported when no receive waited
    retry_s: float = 0.0  # it failed; it is not asked until then
    # Its version does not support notifications; it is not asked until then.
    old_until_s: float = 0.0


class ReceiveLine:
    """The waiting receives of one `LineKey`.

    `give_back` takes messages that no receive wants. `max_messages` is that of the `LineKey`.
    """

    def __init__(
        self, ask: Ask, give_back: Callable[[PopResponse], None], max_messages: int
    ) -> None:
        self._ask = ask
        self._give_back = give_back
        self._max_messages = max_messages
        # They prefer the broker that they name.
        self._receives: WaitingReceives[None, str | PopResponse] = WaitingReceives(self._hand_over)
        self._brokers: dict[str, _Broker] = {}

    @property
    def is_idle(self) -> bool:
        return not self._receives and not any(
            broker.asking or broker.visits for broker in self._brokers.values()
        )

    def is_old(self, name: str) -> bool:
        """Return whether the broker's version is too old for notifications."""
        broker = self._brokers.get(name)  # not created: a client may name an unknown broker
        return broker is not None and broker.old_until_s > _now_s()

    def begin(self, named: str, brokers: Sequence[str]) -> str | None:
        """Return the broker that a new receive visits first; None: wait instead.

        Normally this is the broker that the receive names, unless a call for its messages is
        already held there. A broker with messages that no receive has fetched goes first.
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
        """Register a visit of a receive to this broker. `end` ends it."""
        broker = self._broker(name)
        broker.visits += 1
        broker.has_message = False
        return name

    async def wait(self, named: str, brokers: Sequence[str], deadline_s: float) -> Found:
        """Return the broker to visit now, or messages; None when the time is over.

        `deadline_s` is in the event loop's time. The caller ends every visit, also that of `begin`,
        with `end`.
        """
        for name in brokers:
            self._notify(name)
        return await self._receives.wait(None, deadline_s, prefers=named)

    def _hand_over(self, found: str | PopResponse) -> None:
        """Take back the outcome of a receive that was cancelled."""
        if isinstance(found, str):  # let another receive visit it
            self.end(found)
        else:
            self._give_back(found)

    def end(self, name: str, *, full: bool = False, failed: bool = False) -> None:
        """End a visit. `full`: it returned as many messages as a receive may have."""
        broker = self._broker(name)
        broker.visits -= 1
        broker.visited_s = _now_s()
        if failed:
            broker.retry_s = broker.visited_s + RETRY_S
        elif full:
            self._send(name, 2)
        if self._receives.any_waits and not broker.visits:
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
                    found = await self._ask(name, self._receives.any_waits)
                except MqError as error:
                    broker.retry_s = _now_s() + RETRY_S
                    if error.code is Code.REQUEST_CODE_NOT_SUPPORTED:
                        broker.old_until_s = _now_s() + OLD_S
                        break
                if found or not self._receives.any_waits:
                    break
                # A broker without long polls (longPollingEnable) answers at once.
                await asyncio.sleep(max(0.0, asked_s + RETRY_S - _now_s()))
        finally:
            broker.asking = None
        if self.is_old(name):
            for _ in range(self._receives.preferring(name)):  # they wait at that broker instead
                self._receives.give(self.visit(name), name)
        elif isinstance(found, PopResponse):
            self._deliver(name, found)
        elif found and not self._send(name, 1) and not broker.visits:
            broker.has_message = True

    def _deliver(self, name: str, answer: PopResponse) -> None:
        """Give popped messages to a waiting receive; give them back if none waits."""
        broker = self._broker(name)
        if not self._receives.give(answer, name):
            broker.has_message = not broker.visits
            self._give_back(answer)
            return
        broker.visits += 1
        self.end(name, full=answer.message_count >= self._max_messages)

    def _send(self, name: str, count: int) -> int:
        """Send up to `count` waiting receives to a broker. Return how many were sent.

        Receives that name this broker go first, then those that have waited longest.
        """
        for sent in range(count):
            if not self._receives.any_waits:
                return sent
            self._receives.give(self.visit(name), name)
        return count


class ReceiveLines:
    """All lines, by key. `make` creates an empty line."""

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


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        structlog.get_logger().error("notification_failed", exc_info=error)
