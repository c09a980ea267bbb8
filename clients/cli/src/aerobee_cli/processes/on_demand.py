"""The console of `aerobee up`: its port is open from the start, its process only for visitors.

This process listens, and starts the console at the first connection. The console inherits the
socket and accepts the connections itself. It ends 30 minutes after its last visitor, and the next
connection starts it again.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from aerobee_cli.errors import ProcessEnded
from aerobee_cli.processes.supervise import Child, LineSink

HOST = "127.0.0.1"
DEFAULT_PORT = 8_082
IDLE_S = 30 * 60


class OnDemandConsole:
    """A console that runs while it has visitors.

    Args:
        port: The port to listen on; 0 for a free one.
        on_line: Called with every line of its log.
        idle_s: The time without a visitor after which it ends, in seconds.

    Raises:
        OSError: The port is in use.
    """

    def __init__(self, port: int, on_line: LineSink, *, idle_s: float = IDLE_S) -> None:
        self._listener = socket.create_server((HOST, port))
        self._listener.setblocking(False)
        self._on_line = on_line
        self._idle_s = idle_s
        self._child: Child | None = None
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"

    async def serve(self, namesrv: str) -> None:
        """Start the console for visitors, again and again. Never returns."""
        while True:
            await self._connection()
            file = self._listener.fileno()
            arguments = ["--fd", str(file), "--idle-exit", str(self._idle_s)]
            self._child = Child(
                "console", "aerobee_console", arguments, self._on_line, pass_fds=[file]
            )
            try:
                await self._child.launch()
                await self._child.begin("--namesrv", namesrv)
                await self._child.until_ready()
                if await self._child.wait():
                    raise self._child.failure()
            except (ProcessEnded, OSError) as failure:  # the services run on without a console
                self._on_line(str(failure))
                self._refuse()

    async def stop(self) -> None:
        """Stop the console, and close its port."""
        if self._child is not None:
            await self._child.stop()
        self._listener.close()

    async def _connection(self) -> None:
        """Wait for a connection, which stays in the queue of the socket."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        loop.add_reader(self._listener, arrived.set)
        try:
            await arrived.wait()
        finally:
            loop.remove_reader(self._listener)

    def _refuse(self) -> None:
        """Close the connections that wait, so that they do not start a failing console again."""
        with suppress(OSError):  # none waits any more
            while True:
                self._listener.accept()[0].close()
