"""Describe the other end of a connection to its calls."""

from __future__ import annotations

import asyncio
from functools import cached_property

from aerobee_chassis.rpc.http2.hello import AcceptedSocket


class SocketPeer:
    """The other end of a connection.

    Attributes:
        address: "host:port".
        is_encrypted: Whether calls come over TLS.
    """

    def __init__(self, accepted: AcceptedSocket) -> None:
        self.address = accepted.address
        self.is_encrypted = accepted.is_tls
        self._transport: asyncio.BaseTransport | None = None

    def connected(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport of the connection, after the handshake of TLS."""
        self._transport = transport

    @cached_property
    def certificate_uris(self) -> tuple[str, ...]:
        """Return the URIs in the certificate that TLS has verified; () without one."""
        if self._transport is None:
            return ()
        found = self._transport.get_extra_info("peercert") or {}
        return tuple(value for kind, value in found.get("subjectAltName", ()) if kind == "URI")
