"""Listen on sockets, and accept connections within the limits of a port."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aerobee_chassis.addresses import (
    is_relayed_tls,
    join_address,
    relayed_address,
    split_address,
)
from aerobee_chassis.rpc.connections import AcceptedConnections

BACKLOG = 1_024  # connections that the kernel completes before they are accepted
ACCEPTS_A_TURN = 64
NO_DESCRIPTOR_PAUSE_S = 1.0
UNIX = "unix:"
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Contexts = Callable[[], ssl.SSLContext]


@dataclass(frozen=True, slots=True)
class AcceptedSocket:
    """A new connection.

    Attributes:
        socket: The socket, which does not block.
        host: The address of the other end; "" for a local socket.
        address: "host:port" of the other end, or of the client of a relay; otherwise "unix".
        is_relayed_tls: Whether the other end is a relay whose client uses TLS.
        tls: Returns the context for its handshake; None for plaintext.
    """

    socket: socket.socket
    host: str
    address: str
    is_relayed_tls: bool
    tls: Contexts | None


class ListeningSockets:
    """The listening sockets of one listener.

    Args:
        loop: The event loop.
        counts: Decides which connections are kept.
        accept: Gets each of these, and releases it in `counts` when it ends.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        counts: AcceptedConnections,
        accept: Callable[[AcceptedSocket], None],
    ) -> None:
        self._loop = loop
        self._counts = counts
        self._accept = accept
        self._sockets: list[tuple[socket.socket, Contexts | None]] = []
        self._paths: list[str] = []  # of local sockets
        self._pauses: set[asyncio.TimerHandle] = set()

    def bind(self, target: str, tls: Contexts | None) -> int:
        """Listen on "host:port" or "unix:PATH". Return the port, 0 for a path. Raises OSError."""
        if target.startswith(UNIX):
            path = target.removeprefix(UNIX)
            self._sockets.append((_bound_to_path(path), tls))
            self._paths.append(path)
            return 0
        host, port = split_address(target)
        bound: list[socket.socket] = []
        try:
            for family, address in _addresses(host):
                bound.append(_bound(family, address, port))
                port = bound[0].getsockname()[1]
        except BaseException:
            for each in bound:
                each.close()
            raise
        self._sockets += [(each, tls) for each in bound]
        return port

    def start(self) -> None:
        for each, tls in self._sockets:
            self._loop.add_reader(each, self._on_connections, each, tls)

    def close(self) -> None:
        """Accept no more connections."""
        for pause in self._pauses:
            pause.cancel()
        for each, _ in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        for path in self._paths:
            with suppress(OSError):
                Path(path).unlink()
        self._sockets.clear()
        self._paths.clear()

    def _on_connections(self, listening: socket.socket, tls: Contexts | None) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                self._pause(listening, tls)
                return
            host, end, relayed = _other_end(address)
            if not self._counts.admit(host):
                accepted.close()
                continue
            accepted.setblocking(False)
            if host:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._accept(AcceptedSocket(accepted, host, end, relayed, tls))

    def _pause(self, listening: socket.socket, tls: Contexts | None) -> None:
        """Accept nothing for some time: no descriptor is free."""
        self._loop.remove_reader(listening)

        def resume() -> None:
            self._pauses.discard(handle)
            self._loop.add_reader(listening, self._on_connections, listening, tls)

        handle = self._loop.call_later(NO_DESCRIPTOR_PAUSE_S, resume)
        self._pauses.add(handle)


def _addresses(host: str) -> Iterator[tuple[int, str]]:
    """Yield the addresses of a host. Raises OSError.

    A wildcard is one socket for both families if the system has IPv6.
    """
    if host in ("", "0.0.0.0", "::"):
        is_dual = socket.has_dualstack_ipv6()
        yield (socket.AF_INET6, "::") if is_dual else (socket.AF_INET, "0.0.0.0")
        return
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    yield from dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found)


def _bound(family: int, address: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted server gets its port although old connections are still being closed.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address != "::")
        made.bind((address, port))
        return _listening(made)
    except BaseException:
        made.close()
        raise


def _bound_to_path(path: str) -> socket.socket:
    """Listen on a path. A socket that a former process has left there is replaced."""
    with suppress(FileNotFoundError):
        if Path(path).is_socket():
            Path(path).unlink()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(path)
        return _listening(made)
    except BaseException:
        made.close()
        raise


def _listening(bound: socket.socket) -> socket.socket:
    bound.setblocking(False)
    bound.listen(BACKLOG)
    return bound


def _other_end(address: object) -> tuple[str, str, bool]:
    """Return `host`, `address` and `is_relayed_tls` of an `AcceptedSocket`."""
    if isinstance(address, tuple):
        host = str(address[0]).removeprefix("::ffff:")
        return host, join_address(host, address[1]), False
    name = address if isinstance(address, bytes) else str(address).encode()
    path = os.fsdecode(name.lstrip(bytes(1)))
    return "", relayed_address(path), is_relayed_tls(path)
