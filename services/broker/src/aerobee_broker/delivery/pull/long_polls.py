"""Long polls: pulls and pops that wait (are parked) until a message arrives.

A pull waits at a queue offset. An arrival of messages wakes every pull whose offset and tags it
matches. A pop waits for its consumer group. An arrival of n messages wakes n pops of each group,
the longest waiting first. If a woken pop finds no message, because another pop was faster, it is
parked again. A notification is woken when more messages arrive than the group has parked pops.

A call is parked without an await after the read that found no message, so it cannot miss an arrival
between the two. Tags are compared by their codes, without reading the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from aerobee_broker.store.messages import Arrival
from aerobee_chassis.rpc.call_times import begin_wait
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import RETRY_PREFIX, is_retry

REPAIR_LOOK_S = 1.0
MAX_PARKED_POPS = 100_000  # RocketMQ's maxPopPollingSize
MAX_POLLS_OF_CLIENT = 1_024


class _ParkedCall(NamedTuple):
    """The queue, lowest offset and tags codes of the messages that a parked call waits for."""

    queue_id: int | None  # None: any queue of the topic
    queue_offset: int
    tags_codes: frozenset[int] | None  # None: any message
    timer: asyncio.TimerHandle


_Line = int | str
_Calls = dict[asyncio.Future[bool], _ParkedCall]


class _Lines:
    """The parked calls by topic and key, the longest waiting first.

    The key (`_Line`) is a queue id for pulls, and a consumer group for pops and notifications.
    """

    def __init__(self) -> None:
        self.topics: dict[str, dict[_Line, _Calls]] = {}
        self.count = 0

    def calls(self, topic: str, line: _Line) -> _Calls:
        return self.topics.get(topic, {}).get(line, {})

    def park(
        self,
        topic: str,
        line: _Line,
        timeout_s: float,
        *,
        queue_id: int | None,
        queue_offset: int,
        tags_codes: frozenset[int] | None,
    ) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(timeout_s, _end, future, False)
        call = _ParkedCall(queue_id, queue_offset, tags_codes, timer)
        calls = self.topics.setdefault(topic, {}).setdefault(line, {})
        calls[future] = call
        self._keep(topic, line, calls)
        begin_wait()
        self.count += 1
        return future

    def _keep(self, topic: str, line: _Line, calls: _Calls) -> None:
        """Record the calls of a line. A subclass that finds calls by another key overrides this."""

    def leave(self, topic: str, line: _Line, future: asyncio.Future[bool]) -> None:
        self.count -= 1
        lines = self.topics[topic]
        calls = lines[line]
        calls.pop(future).timer.cancel()
        if not calls:
            del lines[line]
        if not lines:
            del self.topics[topic]

    def end_all(self) -> None:
        for lines in self.topics.values():
            for calls in lines.values():
                for future in calls:
                    _end(future, False)


class _GroupLines(_Lines):
    """The parked calls of consumer groups, also by group and then by topic."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[_Line, dict[str, _Calls]] = {}

    def _keep(self, topic: str, line: _Line, calls: _Calls) -> None:
        self.groups.setdefault(line, {})[topic] = calls

    def leave(self, topic: str, line: _Line, future: asyncio.Future[bool]) -> None:
        super().leave(topic, line, future)
        topics = self.groups[line]
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.groups[line]


class LongPolls:
    """The calls that wait for messages.

    `max_of_client` is the limit for the pops of one client. `is_repairing`: whether damaged records
    may be repaired. A repair notifies no call, so calls then wait only for REPAIR_LOOK_S.
    """

    def __init__(
        self,
        max_parked_pops: int = MAX_PARKED_POPS,
        is_repairing: Callable[[], bool] = lambda: False,
        max_of_client: int = MAX_POLLS_OF_CLIENT,
    ) -> None:
        self._max_parked_pops = max_parked_pops
        self._max_of_client = max_of_client
        self._is_repairing = is_repairing
        self._pulls = _Lines()  # by topic and queue id
        self._pops = _GroupLines()  # by topic and consumer group
        self._notifications = _GroupLines()  # by topic and consumer group
        self._pops_of: dict[str, set[asyncio.Future[bool]]] = {}  # by client id
        self.closed = False

    @property
    def parked_pulls(self) -> int:
        return self._pulls.count

    @property
    def parked_pops(self) -> int:
        return self._pops.count

    @property
    def count(self) -> int:
        return self._pulls.count + self._pops.count + self._notifications.count

    def _limited(self, timeout_s: float) -> float:
        return min(timeout_s, REPAIR_LOOK_S) if self._is_repairing() else timeout_s

    async def park_pull(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        tags_codes: frozenset[int] | None,
        timeout_s: float,
    ) -> bool:
        """Wait for a message at or after `queue_offset` with one of the tags codes.

        Returns True when the message arrives, and False after the timeout or if the broker stops.
        """
        if self.closed:
            return False
        future = self._pulls.park(
            topic,
            queue_id,
            self._limited(timeout_s),
            queue_id=queue_id,
            queue_offset=queue_offset,
            tags_codes=tags_codes,
        )
        try:
            return await future
        finally:
            self._pulls.leave(topic, queue_id, future)

    async def park_pop(
        self,
        consumer_group: str,
        topic: str,
        queue_id: int | None,
        tags_codes: frozenset[int] | None,
        timeout_s: float,
        *,
        client_id: str = "",
    ) -> bool:
        """Wait until a pop of the group may find a message.

        Returns True if the caller must read again. Returns False after the timeout, if the client
        has disconnected, or if the broker stops. If a pop is cancelled after it was woken, the next
        pop is woken. Raises MqError with the code POLLING_FULL if too many calls are parked.
        """
        if self.closed:
            return False
        self._check_room()
        if len(self._pops_of.get(client_id, ())) >= self._max_of_client:
            raise MqError(
                Code.POLLING_FULL,
                f"{self._max_of_client} receives of client {client_id} wait for messages here, "
                "the most that maxPollsPerClient allows: retry later, or without waiting",
                about="maxPollsPerClient",
            )
        future = self._pops.park(
            topic,
            consumer_group,
            self._limited(timeout_s),
            queue_id=queue_id,
            queue_offset=0,
            tags_codes=tags_codes,
        )
        if client_id:
            self._pops_of.setdefault(client_id, set()).add(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.wake_pop(consumer_group, topic, queue_id)
            raise
        finally:
            self._pops.leave(topic, consumer_group, future)
            if client_id:
                self._leave(client_id, future)

    def client_left(self, client_id: str) -> None:
        """End the parked pops of a client that has disconnected. `park_pop` returns False."""
        for future in self._pops_of.get(client_id, ()):
            _end(future, False)

    def _leave(self, client_id: str, future: asyncio.Future[bool]) -> None:
        futures = self._pops_of[client_id]
        futures.discard(future)
        if not futures:
            del self._pops_of[client_id]

    async def park_notification(
        self,
        consumer_group: str,
        topic: str,
        tags_codes: frozenset[int] | None,
        timeout_s: float,
    ) -> bool:
        """Wait until there may be a message for the group that its parked pops do not take.

        Returns True if the caller must check again. Returns False after the timeout, or if the
        broker stops. Raises MqError with the code POLLING_FULL if too many calls are parked.
        """
        if self.closed:
            return False
        self._check_room()
        future = self._notifications.park(
            topic,
            consumer_group,
            self._limited(timeout_s),
            queue_id=None,
            queue_offset=0,
            tags_codes=tags_codes,
        )
        try:
            return await future
        finally:
            self._notifications.leave(topic, consumer_group, future)

    def _check_room(self) -> None:
        parked = self._pops.count + self._notifications.count
        if parked >= self._max_parked_pops:
            raise MqError(
                Code.POLLING_FULL,
                f"{parked} calls wait for messages here: retry later, or without waiting",
            )

    # ---- waking ----

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        pulls, pops, notified = self._pulls.topics, self._pops.topics, self._notifications.topics
        for arrival in arrivals:
            if (queues := pulls.get(arrival.topic)) and (calls := queues.get(arrival.queue_id)):
                _wake(calls, arrival, len(calls))
            left: dict[_Line, int] = {}  # group → number of messages that no parked pop takes
            if groups := pops.get(arrival.topic):
                for group, calls in groups.items():
                    most = arrival.max_offset - arrival.first_offset
                    left[group] = _wake(calls, arrival, most)
            if groups := notified.get(arrival.topic):
                for group, calls in groups.items():
                    if left.get(group, 1):
                        _wake(calls, arrival, len(calls))
            if is_retry(arrival.topic):
                most = arrival.max_offset - arrival.first_offset
                self._wake_for_retry(arrival.topic, most)

    def wake_pulls(self, topic: str, queue_id: int) -> None:
        """Wake all pulls of a queue, because its offsets were reset or its topic was deleted."""
        for future in self._pulls.calls(topic, queue_id):
            _end(future, True)

    def wake_pops(self, topic: str) -> None:
        """Wake all pops and notifications of a topic that was deleted or had offsets reset."""
        for parked in (self._pops, self._notifications):
            for calls in parked.topics.get(topic, {}).values():
                for future in calls:
                    _end(future, True)

    def wake_group(self, consumer_group: str) -> None:
        """Wake all pops and notifications of a group that was deleted."""
        for parked in (self._pops, self._notifications):
            for calls in parked.groups.get(consumer_group, {}).values():
                for future in calls:
                    _end(future, True)

    def wake_pop(self, consumer_group: str, topic: str, queue_id: int | None = None) -> None:
        """Wake the longest waiting pop, because a message of its queue is available again.

        If `queue_id` is None, the message may be in any queue. If no pop waits for the message,
        wakes all notifications of the group. Pops of any topic take messages of the retry topic.
        """
        if is_retry(topic):
            self._wake_for_retry(topic, 1)
            return
        for future, call in self._pops.calls(topic, consumer_group).items():
            if not future.done() and (queue_id is None or call.queue_id in {None, queue_id}):
                _end(future, True)
                return
        for future in self._notifications.calls(topic, consumer_group):
            _end(future, True)

    def _wake_for_retry(self, topic: str, most: int) -> None:
        """Wake up to `most` pops of a group, because its retry topic has messages.

        If there are fewer pops, also wake all notifications of the group.
        """
        consumer_group = topic.removeprefix(RETRY_PREFIX)
        for calls in self._pops.groups.get(consumer_group, {}).values():
            for future, call in calls.items():
                if most <= 0:
                    return
                if call.queue_id is None and not future.done():
                    _end(future, True)
                    most -= 1
        if most <= 0:
            return
        for calls in self._notifications.groups.get(consumer_group, {}).values():
            for future in calls:
                _end(future, True)

    def close(self) -> None:
        """End all parked calls, and return from later ones at once, because the broker stops."""
        self.closed = True
        self._pulls.end_all()
        self._pops.end_all()
        self._notifications.end_all()


def _wake(calls: _Calls, arrival: Arrival, most: int) -> int:
    """Wake up to `most` calls that wait for one of the arrived messages.

    Returns `most` minus the number of woken calls.
    """
    codes: frozenset[int] | None = None
    for future, call in calls.items():
        if most <= 0:
            break
        if future.done() or call.queue_id not in {None, arrival.queue_id}:
            continue
        if arrival.max_offset <= call.queue_offset:
            continue
        if call.tags_codes is not None:
            if codes is None:
                codes = arrival.tags_codes
            if codes.isdisjoint(call.tags_codes):
                continue
        _end(future, True)
        most -= 1
    return most


def _end(future: asyncio.Future[bool], found: bool) -> None:
    if not future.done():
        future.set_result(found)


class Arrivals:
    """Passes on newly visible messages: wakes long polls, and calls the listener of each topic."""

    def __init__(self, polls: LongPolls) -> None:
        self._polls = polls
        self._listeners: dict[str, Callable[[Arrival], None]] = {}
        self._expected: list[Callable[[], bool]] = []

    def listen(self, topic: str, on_arrival: Callable[[Arrival], None]) -> None:
        """Call `on_arrival` for each arrival of a topic. A topic has one listener."""
        self._listeners[topic] = on_arrival

    def expect(self, is_expected: Callable[[], bool]) -> None:
        """Register a callback that returns whether its owner waits for visible messages."""
        self._expected.append(is_expected)

    def awaited(self) -> bool:
        """Return whether a long poll or another part waits for messages to become visible."""
        return self._polls.count > 0 or any(is_expected() for is_expected in self._expected)

    def __call__(self, arrivals: Sequence[Arrival]) -> None:
        self._polls.arrived(arrivals)
        listeners = self._listeners
        for arrival in arrivals:
            on_arrival = listeners.get(arrival.topic)
            if on_arrival is not None:
                on_arrival(arrival)
