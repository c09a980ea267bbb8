"""A TCP load balancer in a thread: each connection goes to the next address that accepts it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Self

_CHUNK = 1 << 16


class Balancer:
    """Passes connections to `targets`, each "host:port", in turns. It looks at no byte."""

    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = list(targets)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._over = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def hang_up(self) -> None:
        """End all connections. Clients then open new ones."""
        self._loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()
        self._hang_up()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._targets.append(self._targets.pop(0))
        for target in tuple(self._targets):
            host, _, port = target.rpartition(":")
            try:
                there = await asyncio.open_connection(host, int(port))
            except OSError:
                continue
            both = {writer, there[1]}
            self._writers |= both
            await asyncio.gather(_pass(reader, there[1]), _pass(there[0], writer))
            self._writers -= both
            return
        writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()
