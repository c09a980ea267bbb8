"""Long polls: pulls that wait for a message. Knows neither groups nor what a message holds.

Registered without giving way to the loop between the read that found nothing and the wait, so no
arrival can fall between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from aerobee_broker.store.messages import Arrival

QueueKey = tuple[str, int]


class _Wish(NamedTuple):
    queue_offset: int
    tags_codes: frozenset[int] | None  # None: any


class LongPolls:
    def __init__(self) -> None:
        self._parked: dict[QueueKey, dict[asyncio.Future[bool], _Wish]] = {}
        self._closed = False

    @property
    def count(self) -> int:
        return sum(map(len, self._parked.values()))

    async def wait(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        tags_codes: frozenset[int] | None,
        timeout_ms: int,
    ) -> bool:
        """Returns True once a message at or after `queue_offset` with one of the codes is there.

        False: the time is over, or everybody is sent home.
        """
        if self._closed:
            return False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        key = (topic, queue_id)
        self._parked.setdefault(key, {})[future] = _Wish(queue_offset, tags_codes)
        timer = loop.call_later(timeout_ms / 1000, _end, future, False)
        try:
            return await future
        finally:
            timer.cancel()
            self._leave(key, future)

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Wakes whom one of these serves."""
        for arrival in arrivals:
            parked = self._parked.get((arrival.topic, arrival.queue_id))
            if parked:
                self._wake(parked, arrival)

    def wake(self, topic: str, queue_id: int) -> None:
        """Wakes all of one queue, to look again: its offsets were reset, or it is gone."""
        for future in self._parked.get((topic, queue_id), {}):
            _end(future, True)

    def close(self) -> None:
        """Sends everybody home, now and from now on."""
        self._closed = True
        for parked in self._parked.values():
            for future in parked:
                _end(future, False)

    @staticmethod
    def _wake(parked: dict[asyncio.Future[bool], _Wish], arrival: Arrival) -> None:
        codes: frozenset[int] | None = None
        for future, wish in parked.items():
            if arrival.max_offset <= wish.queue_offset:
                continue
            if wish.tags_codes is not None:
                if codes is None:
                    codes = arrival.tags_codes
                if codes.isdisjoint(wish.tags_codes):
                    continue
            _end(future, True)

    def _leave(self, key: QueueKey, future: asyncio.Future[bool]) -> None:
        parked = self._parked[key]
        del parked[future]
        if not parked:
            del self._parked[key]


def _end(future: asyncio.Future[bool], found: bool) -> None:
    if not future.done():
        future.set_result(found)
