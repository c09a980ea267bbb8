"""Pops that wait for a message. An arrival of n messages wakes n of each group, longest wait first.

A pop that was woken takes what it finds; who finds nothing waits again. One that goes away between
being woken and taking passes the call on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aerobee_broker.store.messages import Arrival
from aerobee_wire.status import Code, MqError

MAX_PARKED = 100_000  # RocketMQ's maxPopPollingSize


class _Wish(NamedTuple):
    queue_id: int | None  # None: any
    tags_codes: frozenset[int] | None  # None: any


_Parked = dict[asyncio.Future[bool], _Wish]


class PopPolls:
    def __init__(self, limit: int = MAX_PARKED) -> None:
        self._limit = limit
        self._topics: dict[str, dict[str, _Parked]] = {}  # topic → group → who waits
        self._closed = False
        self.count = 0

    @property
    def closed(self) -> bool:
        return self._closed

    async def wait(
        self,
        consumer_group: str,
        topic: str,
        queue_id: int | None,
        tags_codes: frozenset[int] | None,
        timeout_s: float,
    ) -> bool:
        """True: look again. False: the time is over, or everybody is sent home.

        Raises MqError POLLING_FULL.
        """
        if self._closed:
            return False
        if self.count >= self._limit:
            raise MqError(
                Code.POLLING_FULL,
                f"{self.count} calls wait for messages here: try again later, or without waiting",
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        parked = self._topics.setdefault(topic, {}).setdefault(consumer_group, {})
        parked[future] = _Wish(queue_id, tags_codes)
        self.count += 1
        timer = loop.call_later(timeout_s, _end, future, False)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.wake(consumer_group, topic, queue_id)
            raise
        finally:
            timer.cancel()
            self._leave(consumer_group, topic, future)

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            groups = self._topics.get(arrival.topic)
            if groups:
                for parked in groups.values():
                    _wake_for(parked, arrival)

    def wake(
        self, consumer_group: str, topic: str, queue_id: int | None = None, count: int = 1
    ) -> None:
        """Wakes who waits longest: messages of a queue (None: any) may be had again."""
        for future, wish in self._of(consumer_group, topic).items():
            if count <= 0:
                return
            if future.done() or not (queue_id is None or wish.queue_id in {None, queue_id}):
                continue
            _end(future, True)
            count -= 1

    def wake_topic(self, topic: str) -> None:
        """Wakes all of a topic, to look again: it is gone, or its offsets were reset."""
        for parked in self._topics.get(topic, {}).values():
            for future in parked:
                _end(future, True)

    def close(self) -> None:
        """Sends everybody home, now and from now on."""
        self._closed = True
        for groups in self._topics.values():
            for parked in groups.values():
                for future in parked:
                    _end(future, False)

    def _of(self, consumer_group: str, topic: str) -> Mapping[asyncio.Future[bool], _Wish]:
        return self._topics.get(topic, {}).get(consumer_group, {})

    def _leave(self, consumer_group: str, topic: str, future: asyncio.Future[bool]) -> None:
        self.count -= 1
        groups = self._topics[topic]
        parked = groups[consumer_group]
        del parked[future]
        if not parked:
            del groups[consumer_group]
        if not groups:
            del self._topics[topic]


def _wake_for(parked: _Parked, arrival: Arrival) -> None:
    left = arrival.max_offset - arrival.first_offset
    codes: frozenset[int] | None = None
    for future, wish in parked.items():
        if left <= 0:
            return
        if future.done() or wish.queue_id not in {None, arrival.queue_id}:
            continue
        if wish.tags_codes is not None:
            if codes is None:
                codes = arrival.tags_codes
            if codes.isdisjoint(wish.tags_codes):
                continue
        _end(future, True)
        left -= 1


def _end(future: asyncio.Future[bool], found: bool) -> None:
    if not future.done():
        future.set_result(found)
