"""The open stream by which a broker shows that it lives, seen from the tables. No transport here.

A broker that dies takes its stream with it; that is how it is known to be gone long before its
silence counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MinBrokerIdChanged:
    """The lowest broker id of a broker name changed. Empty: not known, or nobody."""

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
        """Puts a notice on its way."""
        self._notices.put_nowait(notice)

    def close(self) -> None:
        """Ends the stream after what is already on its way."""
        self._notices.put_nowait(None)

    async def notices(self) -> AsyncIterator[MinBrokerIdChanged]:
        """The notices, until the watch is closed."""
        while (notice := await self._notices.get()) is not None:
            yield notice
