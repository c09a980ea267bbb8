"""Enforce the limits of a port (`port_limits`).

gRPC enforces most of them itself, by the options of the port (`port_options`). It does not count
connections by address. So `Connections` looks at the descriptors of this process every second, and
closes the newest connections of an address that has too many.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

import structlog

from aerobee_chassis.clock import SystemClock
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Failure
from aerobee_wire.status import Code, MqError, grpc_status_of, trailers_of

MAX_PING_STRIKES = 20  # pings that come too early; then the connection ends with a GOAWAY
MIN_PING_INTERVAL_MS = 1_000
LOOK_S = 1.0
# A look takes at most this part of the time of a core: it takes some 50 ms for 20,000 connections.
LOOK_SHARE = 0.02
NO_DESCRIPTOR_PAUSE_S = 10.0  # after a look that found no free descriptor
LOG_MS = 60_000  # between two lines about refused connections
MAX_LOGGED_HOSTS = 100  # in one line
DESCRIPTORS = "/dev/fd"  # exists on macOS too


def port_options(limits: PortLimits) -> tuple[tuple[str, int], ...]:
    """Return the options of gRPC for a port with these limits."""
    return (
        ("grpc.max_allowed_incoming_connections", limits.connections),
        # A connection must complete TLS and send its HTTP/2 settings in this time.
        ("grpc.server_handshake_timeout_ms", limits.silent_ms),
        ("grpc.max_concurrent_streams", limits.streams),
        # Clients ping on idle connections. By default, gRPC closes those connections.
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", MAX_PING_STRIKES),
    )


class AcceptedConnections:
    """Count the connections of a port when they are accepted, and refuse those above the limits.

    Connections of local sockets, which have no host, count only in the total.
    """

    def __init__(self, limits: PortLimits, now_ms: Callable[[], int] | None = None) -> None:
        self._limits = limits
        self._now_ms = now_ms or SystemClock().monotonic_ms
        self._open: Counter[str] = Counter()  # by host
        self._total = 0
        self._refused: Counter[str] = Counter()  # by host, since the last line of the log
        self._logged_ms: int | None = None

    def admit(self, host: str) -> bool:
        """Count a new connection of a host. Return False if it must be closed."""
        if self._total >= self._limits.connections:
            return False
        if host:
            if self._open[host] >= self._limits.connections_per_address:
                self._refuse(host)
                return False
            self._open[host] += 1
            self._limits.counts.open += 1
        self._total += 1
        return True

    def release(self, host: str) -> None:
        """Note the end of a connection that was admitted."""
        self._total -= 1
        if host:
            self._open[host] -= 1
            if not self._open[host]:
                del self._open[host]
            self._limits.counts.open -= 1

    def _refuse(self, host: str) -> None:
        if not self._open[host]:  # the limit is 0
            del self._open[host]
        self._limits.counts.refused += 1
        if host in self._refused or len(self._refused) < MAX_LOGGED_HOSTS:
            self._refused[host] += 1
        now_ms = self._now_ms()
        if self._logged_ms is None or now_ms - self._logged_ms >= LOG_MS:
            self._logged_ms = now_ms
            refused, self._refused = self._refused, Counter()
            structlog.get_logger().warning(
                "connections_refused",
                addresses=refused,
                maxConnectionsPerAddress=self._limits.connections_per_address,
            )


def late(limits: PortLimits) -> Failure:
    """Count a call whose request did not arrive whole in time, and return its failure."""
    limits.counts.late += 1
    error = MqError(
        Code.REQUEST_TIMEOUT,
        f"the request did not arrive whole within {limits.arrival_s:g} s "
        "(requestArrivalTimeoutMillis): retry it, over a faster connection or in smaller parts",
        about="requestArrivalTimeoutMillis",
    )
    return Failure(grpc_status_of(error.code), error.message, trailers_of(error))


class Sockets(Protocol):
    """The sockets of this process."""

    def open(self) -> Iterator[tuple[int, int]]:
        """Yield (descriptor, inode) of each socket. No other socket ever had the same inode."""

    def peer(self, descriptor: int, port: int) -> str | None:
        """Return the host at the other end of a connection of a port.

        Return None if the socket is not a connection of this port.
        """

    def hang_up(self, descriptor: int) -> None:
        """End a connection, which its owner then closes."""


class Connections(Component):
    """Close the newest connections of an address that has more than it may have.

    The looks run on a thread, so that they delay no call, and do not wake an idle event loop.
    """

    def __init__(self, port: int, limits: PortLimits, sockets: Sockets | None = None) -> None:
        self._port = port
        self._limits = limits
        self._sockets = sockets or ProcessSockets()
        # Host of each connection, the oldest first. The host is None for other sockets.
        self._hosts: dict[tuple[int, int], str | None] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        context = contextvars.copy_context()  # the fields of log lines
        self._thread = threading.Thread(
            target=context.run, args=(self._keep,), name="connections", daemon=True
        )
        self._thread.start()

    async def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _keep(self) -> None:
        now_ms, pause_s, logged_ms = SystemClock().monotonic_ms, LOOK_S, None
        while not self._stopping.wait(pause_s):
            began_ms, began_s = now_ms(), time.thread_time()  # other threads may take the core
            try:
                refused = self.look()
            except OSError as error:  # no descriptor is free: look again later
                structlog.get_logger().warning("connections_not_counted", reason=error.strerror)
                pause_s = NO_DESCRIPTOR_PAUSE_S
                continue
            pause_s = max(LOOK_S, (time.thread_time() - began_s) / LOOK_SHARE)
            if refused and (logged_ms is None or began_ms - logged_ms >= LOG_MS):
                logged_ms = began_ms
                structlog.get_logger().warning(
                    "connections_refused",
                    addresses=refused,
                    maxConnectionsPerAddress=self._limits.connections_per_address,
                )

    def look(self) -> Mapping[str, int]:
        """Close connections, and return how many of each address."""
        sockets, known = self._sockets, self._hosts
        hosts: dict[tuple[int, int], str | None] = {}
        new = []
        for key in sockets.open():
            if key in known:
                hosts[key] = known[key]
            else:
                new.append(key)
        counts = Counter(host for host in hosts.values() if host is not None)
        refused: Counter[str] = Counter()
        for key in new:
            host = hosts[key] = sockets.peer(key[0], self._port)
            if host is None:
                continue
            if counts[host] < self._limits.connections_per_address:
                counts[host] += 1
            else:
                sockets.hang_up(key[0])
                refused[host] += 1
                del hosts[key]
        self._hosts = hosts
        self._limits.counts.open = counts.total()
        self._limits.counts.refused += refused.total()
        return refused


class ProcessSockets:
    """Implement `Sockets` with the descriptors of this process. gRPC owns those of connections."""

    def open(self) -> Iterator[tuple[int, int]]:
        for name in os.listdir(DESCRIPTORS):  # noqa: PTH208  # a third of the time of Path.iterdir
            with suppress(OSError):  # it was closed meanwhile
                found = os.fstat(int(name))
                if stat.S_ISSOCK(found.st_mode):
                    yield int(name), found.st_ino

    def peer(self, descriptor: int, port: int) -> str | None:
        try:
            with _copy_of(descriptor) as copy:
                family = copy.family
                if family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] == port:
                    return str(copy.getpeername()[0]).removeprefix("::ffff:")
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # the socket may be a connection of the port
        return None

    def hang_up(self, descriptor: int) -> None:
        with suppress(OSError), _copy_of(descriptor) as copy:
            copy.shutdown(socket.SHUT_RDWR)


@contextmanager
def _copy_of(descriptor: int) -> Iterator[socket.socket]:
    """Open a copy of a socket while the block runs. Raises OSError if it is not a socket now."""
    copied = os.dup(descriptor)
    try:
        copy = socket.socket(fileno=copied)
    except OSError:
        os.close(copied)
        raise
    with copy:
        yield copy
