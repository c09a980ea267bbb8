"""A process of a client that a test freezes and kills, and what it tells: a line of JSON for each
thing that happened, on its standard output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any, Self


class Agent:
    """`reported`: its lines, in their order."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.reported: list[dict[str, Any]] = []
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, module: str, *arguments: str) -> Self:
        """`python -m MODULE ARGUMENT…`"""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return cls(process)

    async def end(self, *, killed: bool) -> None:
        """By SIGKILL or SIGTERM. Fails when it ended by itself, or not in order."""
        if killed:
            self.send_signal(signal.SIGKILL)
        else:
            self.send_signal(signal.SIGTERM)
        code = await self.process.wait()
        await self._reader
        assert code == (-signal.SIGKILL if killed else 0), f"a client ended by itself: {code}"

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process.returncode is None, f"a client ended: {self.process.returncode}"
        self.process.send_signal(number)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.endswith(b"\n"):  # else it was killed while it wrote
                self.reported.append(json.loads(line))
