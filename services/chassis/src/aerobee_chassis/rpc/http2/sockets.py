"""Listen on sockets, and accept connections."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import structlog

from aerobee_chassis.addresses import join_address, split_address
from aerobee_chassis.errors import PortInUse
from aerobee_chassis.rpc.http2.hello import plain_host

BACKLOG = 4_096  # connections that the kernel completes before they are accepted
ACCEPTS_A_TURN = 64
NO_DESCRIPTOR_PAUSE_S = 1.0
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ListeningSockets:
    """The listening sockets of one listener.

    Args:
        loop: The event loop.
        accept: Gets each connection: a socket that does not block, and the host and port of its
            other end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        accept: Callable[[socket.socket, str, int], None],
    ) -> None:
        self._loop = loop
        self._accept = accept
        self._sockets: list[socket.socket] = []
        self._pauses: set[asyncio.TimerHandle] = set()

    def bind(self, target: str, listeners: Sequence[socket.socket] = ()) -> int:
        """Listen on "host:port", or on sockets that `listen` returned. Return the port.

        Raises PortInUse.
        """
        self._sockets += listeners or listen(*split_address(target))
        return int(self._sockets[0].getsockname()[1])

    def start(self) -> None:
        for each in self._sockets:
            self._loop.add_reader(each, self._on_connections, each)

    def close(self) -> None:
        """Accept no more connections."""
        for pause in self._pauses:
            pause.cancel()
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        self._sockets.clear()

    def _on_connections(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, (host, port, *_) = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                self._pause(listening, error)
                return
            accepted.setblocking(False)
            with suppress(OSError):  # the client has hung up
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._accept(accepted, plain_host(host), port)

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Accept nothing for some time: no descriptor is free."""
        structlog.get_logger().error("accept_failed", error=os.strerror(error.errno or 0))
        self._loop.remove_reader(listening)

        def resume() -> None:
            self._pauses.discard(handle)
            self._loop.add_reader(listening, self._on_connections, listening)

        handle = self._loop.call_later(NO_DESCRIPTOR_PAUSE_S, resume)
        self._pauses.add(handle)


def listen(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Open one socket for each address of `host`, all on the same port. Raises PortInUse.

    With `reuse_port`, other processes that also set it may listen on that port. The kernel
    distributes connections among the processes.
    """
    target = join_address(host, port)
    bound: list[socket.socket] = []
    try:
        for family, address in _addresses(host):
            bound.append(_bound(family, address, port, reuse_port=reuse_port))
            port = bound[0].getsockname()[1]
    except OSError as error:
        for each in bound:
            each.close()
        problem = f"cannot listen on {target}: {error.strerror}; choose another"
        raise PortInUse(problem, target) from None
    return bound


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


def _bound(family: int, address: str, port: int, *, reuse_port: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted server gets its port although old connections are still being closed.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address != "::")
        made.bind((address, port))
        made.setblocking(False)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made
