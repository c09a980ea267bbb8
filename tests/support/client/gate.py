"""Sends that a broker in memory holds back until the test lets them through."""

from __future__ import annotations

import asyncio
from typing import Any

from support.client.memory import MemoryCluster
from support.clock.polling import until


class Gate:
    """Holds each Send until it is let through. `sizes`: messages of each Send that has come."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.held: list[asyncio.Future[None]] = []
        self.sizes: list[int] = []
        self.addresses: list[str] = []
        cluster.answers["Send"] = self._send

    async def _send(self, address: str, request: Any) -> Any:
        held = asyncio.get_running_loop().create_future()
        self.held.append(held)
        self.sizes.append(len(request.batch.body_sizes) or len(request.messages))
        self.addresses.append(address)
        await held
        return await self._cluster._Send(self._cluster.brokers[address], request)

    async def come(self, count: int) -> None:
        await until(lambda: len(self.held) >= count)

    def open(self) -> None:
        self._cluster.answers.pop("Send", None)
        for held in self.held:
            if not held.done():
                held.set_result(None)
