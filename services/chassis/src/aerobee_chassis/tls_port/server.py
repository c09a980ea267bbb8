"""A server behind a shared port: starts and stops both in the order that loses no call."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from aerobee_chassis.tls_port.settings import TlsSettings
from aerobee_chassis.tls_port.supervisor import Counts, SharedPort


class Serving(Protocol):
    """`aerobee_chassis.rpc.server.Server`, or another on the same handlers."""

    async def start(self) -> int: ...

    async def stop(self, grace_s: float) -> None: ...


class SharedServer:
    """Serves TLS and plaintext on one port. `make(host, port)` makes the server that both reach.
    `listeners`: of the port, if it is bound already."""

    def __init__(
        self,
        make: Callable[[str, int], Serving],
        *,
        host: str,
        port: int,
        tls: TlsSettings,
        listeners: Sequence[socket.socket] = (),
    ) -> None:
        self._make = make
        self._shared = SharedPort(host, port, tls, listeners=listeners)
        self._server: Serving | None = None

    @property
    def counts(self) -> Counts:
        return self._shared.counts

    async def start(self) -> int:
        """Returns the port. Raises PortInUse, CertificateError, StartError."""
        self._shared.open()
        self._server = self._make(self._shared.backend, 0)
        await self._server.start()
        return await self._shared.start()

    async def stop(self, grace_s: float) -> None:
        """Refuses new connections and calls, waits up to `grace_s` for calls in progress."""
        self._shared.drain()
        if self._server is not None:
            await self._server.stop(grace_s)
        await self._shared.stop()
