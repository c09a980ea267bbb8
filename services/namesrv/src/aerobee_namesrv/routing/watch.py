"""The open stream of a broker, as the tables see it. Knows no transport.

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
    """One broker's stream. `connection` is the peer that holds it, "host:port"."""

    def __init__(self, connection: str) -> None:
        self.connection = connection
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
