"""DNS of a few lines: host names with records that a test changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class StandInDns:
    """`records`: host → its IP addresses; a host that is missing is unknown."""

    def __init__(self, **records: Sequence[str]) -> None:
        self.records: dict[str, Sequence[str]] = dict(records)
        self.asked: list[str] = []
        self.hangs = False

    async def resolve(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        if self.hangs:
            await asyncio.Event().wait()
        if host not in self.records:
            raise OSError(f"{host}: unknown")
        return self.records[host]
