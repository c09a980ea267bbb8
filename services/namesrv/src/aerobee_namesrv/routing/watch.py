"""Represent the open streams of brokers and clients, without a transport.

When a broker dies, its stream ends within seconds, but its last sign of life expires after minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MinBrokerIdChanged:
    """Notify a member that the lowest broker id of its broker name has changed.

    An empty address is unknown or missing.
    """

    min_broker_id: int
    min_broker_address: str
    offline_broker_address: str = ""
    ha_broker_address: str = ""


class Watch:
    """The notices for the stream of one broker."""

    def __init__(self) -> None:
        self._notices: asyncio.Queue[MinBrokerIdChanged | None] = asyncio.Queue()

    def notify(self, notice: MinBrokerIdChanged) -> None:
        self._notices.put_nowait(notice)

    def close(self) -> None:
        """End the stream after the queued notices."""
        self._notices.put_nowait(None)

    async def notices(self) -> AsyncIterator[MinBrokerIdChanged]:
        """Yield the notices until the watch is closed."""
        while (notice := await self._notices.get()) is not None:
            yield notice


class BrokerWatch:
    """The notices for the stream of one client: the names of brokers whose members changed.

    A name is stored once until it is sent.
    """

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._closed = False
        self._news = asyncio.Event()

    def add(self, broker_name: str) -> None:
        self._changed.add(broker_name)
        self._news.set()

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self._news.set()

    async def changes(self) -> AsyncIterator[list[str]]:
        """Yield lists of changed broker names, each sorted, until the watch is closed."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._closed:
                return
            changed, self._changed = self._changed, set()
            yield sorted(changed)
