"""A server behind a port that takes TLS and plaintext: both start and stop in the order that loses
no call.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from aerobee_chassis.addresses import join_address
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.tls_port.settings import TlsSettings
from aerobee_chassis.tls_port.supervisor import ConnectionCounts, TlsPort


class TlsServer(Component):
    """Serves TLS and plaintext on one port.

    `make_server(host, port)` makes the server behind it, an `aerobee_chassis.rpc.server.Server`.
    `listeners`: sockets of the port, if it is bound already.
    """

    def __init__(
        self,
        make_server: Callable[[str, int], Component],
        *,
        host: str,
        port: int,
        tls: TlsSettings,
        listeners: Sequence[socket.socket] = (),
    ) -> None:
        self._make_server = make_server
        self._host = host
        self.port = port  # 0: a free one, until it is started
        self._tls_port = TlsPort(host, port, tls, listeners=listeners)
        self._server: Component | None = None

    @property
    def counts(self) -> ConnectionCounts:
        return self._tls_port.counts

    @property
    def address(self) -> str:
        """The "host:port" that clients dial, once started."""
        return join_address(self._host, self.port)

    async def start(self) -> None:
        """Raises PortInUse, CertificateError, StartError."""
        self._tls_port.open()
        self._server = self._make_server(self._tls_port.backend, 0)
        await self._server.start()
        self.port = await self._tls_port.start()

    async def stop(self) -> None:
        """Refuses new connections first, then stops the server, then ends every connection."""
        self._tls_port.drain()
        if self._server is not None:
            await self._server.stop()
        await self._tls_port.stop()
