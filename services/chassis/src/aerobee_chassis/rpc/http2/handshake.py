"""Make the TLS of an accepted connection.

This is asyncio's TLS, but all connections read into one buffer. Asyncio gives 256 KiB to each
connection, which would be 256 MB for 1,000 clients.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import sslproto

GOODBYE_S = 1  # for the other side to end TLS before the socket is closed


class TlsProtocol(sslproto.SSLProtocol):
    """TLS between a socket and `connection`, as the side of the server.

    Args:
        loop: The event loop.
        connection: The protocol that gets the decrypted bytes.
        context: The certificate.
        buffer: The buffer for reads, whose bytes are copied at once.
        timeout_s: The time for the handshake.
    """

    max_size = 1  # byte of a buffer that is not used

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: asyncio.BufferedProtocol,
        context: ssl.SSLContext,
        buffer: memoryview,
        timeout_s: float,
    ) -> None:
        self._agreed: asyncio.Future[None] = loop.create_future()
        super().__init__(
            loop,
            connection,
            context,
            self._agreed,
            server_side=True,
            ssl_handshake_timeout=timeout_s,  # type: ignore[arg-type]  # it accepts parts of seconds
            ssl_shutdown_timeout=GOODBYE_S,
        )
        self._ssl_buffer_view = buffer
        # The connection stops as soon as the socket takes no more. Asyncio would first encrypt
        # 512 KiB for each client that does not read.
        self._app_transport.set_write_buffer_limits(high=1, low=0)

    def get_buffer(self, _size: int) -> memoryview:
        return self._ssl_buffer_view

    async def shake_hands(self, accepted: socket.socket) -> None:
        """Complete the handshake on a socket, which this object then owns. Raises OSError."""
        transport = self._app_transport  # which is forgotten when the socket is closed
        await self._loop.connect_accepted_socket(lambda: self, accepted)
        try:
            await self._agreed
        except BaseException:
            transport.abort()
            raise
