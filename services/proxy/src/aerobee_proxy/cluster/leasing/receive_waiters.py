"""Queue the receives that wait for messages of a topic at any of its brokers.

Receives with the same consumer group, topic and filter share a queue. Regardless of the number of
waiting receives, each broker gets one long poll:

    ordered, or no receive waits   a notification, after which one receive pops from that broker
    else                           a pop, whose messages any receive of the queue may get

If no receive waits when messages arrive, they are returned to the group at once, without counting a
delivery attempt.

A receive that gets its maximum number of messages sends two more receives to the same broker,
because that broker may have more messages. A burst therefore reaches many receives quickly.
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

# A broker from which no receive has popped for this time gets a long poll even if no receive waits.
# Otherwise, its messages would not be received while clients name busy brokers only.
UNVISITED_S = 1.0
OLD_S = 60.0  # pause for a broker without notifications, because it may be updated later
KEPT_QUEUES = 256  # the maximum number of idle queues that are kept
# The maximum number of queues without a receive whose long polls continue until brokers end them.
# The next receive of such a queue is served sooner. A client may use a new filter for each receive.
KEPT_POLLS = 16

# A function that makes a long poll. Its arguments are the broker name, and whether a receive waits
# for messages. It returns messages, or True if the broker has a message, or False if the long poll
# ends without a message. Raises MqError.
Ask = Callable[[str, bool], Awaitable[PopResponse | bool]]
# The outcome of a wait: the name of a broker to pop from, or messages, or None after the deadline.
Found = str | PopResponse | None


class WaitersKey(NamedTuple):
    consumer_group: str
    topic: str
    subscription: bytes  # a serialized protobuf message Subscription
    ordered: bool
    # Both are 0 for ordered receives.
    max_messages: int
    invisible_duration_ms: int


@dataclass(slots=True)
class _Broker:
    """The state of one broker for ReceiveWaiters. Times are those of the event loop."""

    visited_s: float  # the end of the last pop by a receive
    asking: asyncio.Task[None] | None = None  # the long poll
    visits: int = 0  # the number of receives that pop from the broker now
    has_message: bool = False  # the broker reported a message while no receive waited
    retry_s: float = 0.0  # after a failure, the earliest time of the next long poll
    # For a broker whose version does not support notifications: no long poll before this time.
    old_until_s: float = 0.0


class ReceiveWaiters:
    """The queue of the waiting receives with the same `WaitersKey`.

    Args:
        ask: Makes a long poll at a broker.
        give_back: Returns messages to the group when no receive waits for them.
        max_messages: The maximum number of messages of each receive; 0 for ordered receives.
    """

    def __init__(
        self, ask: Ask, give_back: Callable[[PopResponse], None], max_messages: int
    ) -> None:
        self._ask = ask
        self._give_back = give_back
        self._max_messages = max_messages
        # Each receive prefers the broker that its client names.
        self._receives: WaitingReceives[None, str | PopResponse] = WaitingReceives(self._hand_over)
        self._brokers: dict[str, _Broker] = {}

    @property
    def is_idle(self) -> bool:
        return not self._receives and not any(
            broker.asking or broker.visits for broker in self._brokers.values()
        )

    @property
    def is_left(self) -> bool:
        """Return whether brokers hold long polls for this queue, although no receive needs them."""
        states = self._brokers.values()
        return (
            not self._receives
            and any(broker.asking for broker in states)
            and not any(broker.visits for broker in states)
        )

    def end_polls(self) -> None:
        """Cancel the long polls of this queue. A later receive starts new ones."""
        for broker in self._brokers.values():
            if broker.asking is not None:
                broker.asking.cancel()
                broker.asking = None

    def is_old(self, name: str) -> bool:
        """Return whether the broker's version is too old for notifications."""
        broker = self._brokers.get(name)  # not created: a client may name an unknown broker
        return broker is not None and broker.old_until_s > _now_s()

    def begin(self, named: str, brokers: Sequence[str]) -> str | None:
        """Choose the broker from which a new receive pops first. Call `end` after the pop.

        Brokers that have reported messages come first. Next comes the broker that the client names,
        unless a long poll already waits there. Return None if the receive must wait instead.
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
        """Note that a receive starts to pop from this broker. Call `end` after the pop."""
        broker = self._broker(name)
        broker.visits += 1
        broker.has_message = False
        return name

    async def wait(self, named: str, brokers: Sequence[str], deadline_s: float) -> Found:
        """Wait for a broker to pop from, or for messages; None after the deadline.

        Before this call, the caller has ended its previous pop with `end`. If the result is a
        broker, the caller pops from it and then calls `end`. `deadline_s` is in the event loop's
        time.
        """
        for name in brokers:
            self._notify(name)
        # A client may name any broker. Each name that receives prefer takes time at each message.
        prefers = named if named in brokers else ""
        return await self._receives.wait(None, deadline_s, prefers=prefers)

    def _hand_over(self, found: str | PopResponse) -> None:
        """Pass the outcome of a cancelled receive to another receive, or return its messages."""
        if isinstance(found, str):  # another receive may pop from this broker
            self.end(found)
        else:
            self._give_back(found)

    def end(self, name: str, *, full: bool = False, failed: bool = False) -> None:
        """End the pop of a receive at a broker.

        `full` is true if the receive got its maximum number of messages. `failed` is true if the
        pop failed.
        """
        broker = self._broker(name)
        broker.visits -= 1
        broker.visited_s = _now_s()
        if failed:
            broker.retry_s = broker.visited_s + RETRY_S
        elif full:
            self._send(name, 2)
        if self._receives.any_waits and not broker.visits:
            self._notify(name)

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
            if broker.asking is asyncio.current_task():  # not after `end_polls`
                broker.asking = None
        if self.is_old(name):
            for _ in range(self._receives.preferring(name)):  # these make long polls of their own
                self._receives.give(self.visit(name), name)
        elif isinstance(found, PopResponse):
            self._deliver(name, found)
        elif found and not self._send(name, 1) and not broker.visits:
            broker.has_message = True

    def _deliver(self, name: str, answer: PopResponse) -> None:
        """Give popped messages to a waiting receive, or return them to the group if none waits."""
        broker = self._broker(name)
        if not self._receives.give(answer, name):
            broker.has_message = not broker.visits
            self._give_back(answer)
            return
        broker.visits += 1
        self.end(name, full=answer.message_count >= self._max_messages)

    def _send(self, name: str, count: int) -> int:
        """Let up to `count` waiting receives pop from a broker. Return the number of receives.

        Receives that name this broker come first, then the receives that have waited longest.
        """
        for sent in range(count):
            if not self._receives.any_waits:
                return sent
            self._receives.give(self.visit(name), name)
        return count


class WaitersByKey:
    """The queues of waiting receives, one for each key. `make` creates an empty queue."""

    def __init__(self, make: Callable[[WaitersKey], ReceiveWaiters]) -> None:
        self._make = make
        self._waiters: dict[WaitersKey, ReceiveWaiters] = {}
        self._clear_at = KEPT_QUEUES

    def waiters(self, key: WaitersKey) -> ReceiveWaiters:
        waiters = self._waiters.pop(key, None)
        if waiters is None:
            self._end_left_polls()
            if len(self._waiters) >= self._clear_at:
                used = {key: each for key, each in self._waiters.items() if not each.is_idle}
                self._waiters, self._clear_at = used, 2 * len(used) + KEPT_QUEUES
            waiters = self._make(key)
        self._waiters[key] = waiters  # behind those that were used before
        return waiters

    def _end_left_polls(self) -> None:
        left = [each for each in self._waiters.values() if each.is_left]
        for waiters in left[:-KEPT_POLLS]:
            waiters.end_polls()

    def close(self) -> None:
        for waiters in self._waiters.values():
            waiters.end_polls()


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        structlog.get_logger().error("notification_failed", exc_info=error)
