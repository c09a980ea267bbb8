"""Open streams as the tables see them: of a broker, and of a client. Knows no transport.

The stream of a broker that dies ends within seconds; its last sign of life expires after minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MinBrokerIdChanged:
    """The lowest broker id of a broker name changed. An empty address: unknown, or none."""

    min_broker_id: int
    min_broker_address: str
    offline_broker_address: str = ""
    ha_broker_address: str = ""


class Watch:
    """One broker's stream."""

    def __init__(self) -> None:
        self._notices: asyncio.Queue[MinBrokerIdChanged | None] = asyncio.Queue()

    def notify(self, notice: MinBrokerIdChanged) -> None:
        self._notices.put_nowait(notice)

    def close(self) -> None:
        """Ends the stream after the notices that are queued."""
        self._notices.put_nowait(None)

    async def notices(self) -> AsyncIterator[MinBrokerIdChanged]:
        """The notices, until the watch is closed."""
        while (notice := await self._notices.get()) is not None:
            yield notice


class BrokerWatch:
    """One client's stream: the names of brokers that have changed, each once until it is taken."""

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._closed = False
        self._news = asyncio.Event()

    def add(self, broker_name: str) -> None:
        self._changed.add(broker_name)
        self._news.set()

    def close(self) -> None:
        """Ends the stream."""
        self._closed = True
        self._news.set()

    async def changes(self) -> AsyncIterator[list[str]]:
        """The names, sorted, until the watch is closed."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._closed:
                return
            changed, self._changed = self._changed, set()
            yield sorted(changed)
