"""Run a server and a relay process that accepts TLS and plaintext on one port for it.

The relay is a separate process (`relay`), so that TLS and relaying do not take time from the
server's event loop. The listening sockets belong to this process, so that the port stays bound if
the relay ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from aerobee_chassis.addresses import TLS_MARK, join_address
from aerobee_chassis.errors import CertificateError, PortInUse, StartError
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.tls_port.settings import RelaySettings, TlsSettings

RELAY = "aerobee_chassis.tls_port.relay"

BACKLOG = 4096
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
RESTART_S = 0.5
LONGEST_RESTART_S = 10.0
# A socket path (sun_path) has at most 103 bytes on macOS, and 107 on Linux. The directory contains
# the server's socket, and a socket named after each caller.
MAX_DIRECTORY = 103 - len(f"/{TLS_MARK}[0000:0000:0000:0000:0000:ffff:255.255.255.255]:65535")

OnReport = Callable[[str, Mapping[str, Any]], None]


@dataclass(slots=True)
class ConnectionCounts:
    """The number of connections since the start. The relay's reports use the same field names."""

    plaintext: int = 0
    tls: int = 0
    # The relay closes these connections: silent for too long, plaintext although TLS is enforced,
    # a failed handshake, or a wrong header.
    silent: int = 0
    refused_plaintext: int = 0
    failed_handshakes: int = 0
    # A header of the PROXY protocol that is malformed, missing, or not from a trusted address.
    refused_headers: int = 0
    # The relay closes these at once: it has maxConnections, or maxConnectionsPerAddress of a host.
    too_many: int = 0
    too_many_of_address: int = 0
    # The number of changed certificates that could not be used.
    failed_reloads: int = 0


class RelayPort:
    """A port for TLS and plaintext: its sockets, and the relay process that accepts connections.

    `listeners` contains sockets that are already bound to the address, if several processes share
    it. `trusted` are the networks of load balancers that send a header of the PROXY protocol. With
    `passes_tls`, the server terminates TLS itself: it listens on `tls_backend` with TLS, and on
    `backend` in plaintext.

    First `open` the port, then start the server, then `begin`. At the end, first `refuse`, then
    stop the server, then `close`.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        tls: TlsSettings,
        limits: PortLimits | None = None,
        listeners: Sequence[socket.socket] = (),
        trusted: Sequence[str] = (),
        passes_tls: bool = False,
    ) -> None:
        self.port = port  # 0 means a free one, until the port is open
        self.counts = ConnectionCounts()
        self._trusted = tuple(trusted)
        self._host = host
        self._tls = tls
        self._limits = limits or PortLimits()
        self._passes_tls = passes_tls
        self._directory: Path | None = None
        self._listeners = list(listeners)
        self._relay: _Relay | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Return the "host:port" for clients, after the start."""
        return join_address(self._host, self.port)

    @property
    def backend(self) -> str:
        """Return the path of the server's socket."""
        assert self._directory is not None, "not open"
        return str(self._directory / "grpc")

    @property
    def tls_backend(self) -> str:
        """Return the path of the server's socket for TLS, or "" if the relay terminates TLS."""
        return f"{self.backend}-tls" if self._passes_tls else ""

    def open(self) -> None:
        """Bind the port. Raises PortInUse, StartError."""
        self._listeners = self._listeners or listen(self._host, self.port)
        self._directory = private_directory()
        self._relay = _Relay(self._listeners, self._on_report)

    async def begin(self) -> None:
        """Accept connections. Raises CertificateError, StartError."""
        assert self._relay is not None, "not open"
        await self._relay.begin(self._settings())
        self._keeper = asyncio.create_task(self._keep(), name="relay keeper")
        self.port = int(self._listeners[0].getsockname()[1])

    async def refuse(self) -> None:
        """Refuse new connections."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        for listener in self._listeners:
            listener.close()
        if self._relay is not None:
            self._relay.write("drain")

    async def close(self) -> None:
        """End every connection."""
        if self._relay is not None:
            await self._relay.stop()
            self._relay = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _settings(self) -> RelaySettings:
        descriptors = tuple(listener.fileno() for listener in self._listeners)
        limits = self._limits
        return RelaySettings(
            descriptors,
            self.backend,
            self._tls,
            limits.silent_ms,
            limits.connections,
            limits.connections_per_address,
            self._trusted,
            self.tls_backend,
        )

    async def _keep(self) -> None:
        """Replace a relay that ends. Its connections are lost, and the clients reconnect."""
        log, wait_s = structlog.get_logger(), RESTART_S
        while True:
            assert self._relay is not None
            code = await self._relay.ended()
            log.error("relay_ended", exit_code=code)
            await self._relay.stop()
            await asyncio.sleep(wait_s)
            try:
                self._relay = _Relay(self._listeners, self._on_report)
                await self._relay.begin(self._settings())
                wait_s = RESTART_S
            except StartError as error:
                log.error("relay_not_started", error=str(error))
                await self._relay.stop()  # it may run without answering
                wait_s = min(2 * wait_s, LONGEST_RESTART_S)

    def _on_report(self, event: str, fields: Mapping[str, Any]) -> None:
        """Count or log an event that the relay reported."""
        log = structlog.get_logger()
        if event == "counted":
            for name, count in fields.items():
                setattr(self.counts, name, getattr(self.counts, name) + count)
        elif event == "reload_failed":
            self.counts.failed_reloads += 1
            log.error("certificate_not_reloaded", **fields, instead="the one before stays")
        elif event == "reloaded":
            log.info("certificate_reloaded", **fields)
        elif event == "connection_refused":
            log.warning(event, **fields)
        elif event == "self_signed_certificate":
            log.info("self_signed_certificate", **fields)
        else:
            log.error(event, **fields)


class Backend(Protocol):
    """The server behind a relay: an `aerobee_chassis.rpc.server.Server`."""

    async def start(self) -> None: ...

    async def stop(self, grace_s: float | None = None) -> None: ...


class TlsServer(Component):
    """Serve TLS and plaintext on one port. The order of start and stop loses no calls.

    `make_server(host, port)` creates the server behind the relay. That server listens on its own
    socket. The other arguments are those of `RelayPort`.
    """

    def __init__(
        self,
        make_server: Callable[[str, int], Backend],
        *,
        host: str,
        port: int,
        tls: TlsSettings,
        limits: PortLimits | None = None,
        listeners: Sequence[socket.socket] = (),
        trusted: Sequence[str] = (),
    ) -> None:
        self._make_server = make_server
        self._relayed = RelayPort(
            host=host, port=port, tls=tls, limits=limits, listeners=listeners, trusted=trusted
        )
        self._server: Backend | None = None

    @property
    def port(self) -> int:
        """Return the port; 0 means a free one, until the server is started."""
        return self._relayed.port

    @property
    def address(self) -> str:
        """Return the "host:port" for clients, after the start."""
        return self._relayed.address

    @property
    def backend(self) -> str:
        """Return the path of the server's socket."""
        return self._relayed.backend

    @property
    def counts(self) -> ConnectionCounts:
        return self._relayed.counts

    async def start(self) -> None:
        """Start the server and its relay. Raises PortInUse, CertificateError, StartError."""
        self._relayed.open()
        self._server = self._make_server(f"unix:{self.backend}", 0)
        await self._server.start()
        await self._relayed.begin()

    async def stop(self, grace_s: float | None = None) -> None:
        """Refuse new connections, then stop the server, and then end every connection.

        `grace_s` is how long the server waits for running calls. The default is that of the server.
        May be called again.
        """
        await self._relayed.refuse()
        if self._server is not None:
            await self._server.stop(grace_s)
        await self._relayed.close()


class _Relay:
    """A relay process. A thread reads its reports, and calls `on_report` on the loop."""

    def __init__(self, listeners: list[socket.socket], on_report: OnReport) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_report = on_report
        self._relaying: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._context = contextvars.copy_context()  # the fields of log lines
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", RELAY],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[listener.fileno() for listener in listeners],
            )
        except OSError as error:
            raise StartError(f"cannot start {RELAY}: {error.strerror}") from None
        self._reader = threading.Thread(target=self._read, name="relay", daemon=True)
        self._reader.start()

    async def begin(self, settings: RelaySettings) -> None:
        """Wait until the relay accepts connections. Raises CertificateError, StartError."""
        self.write(settings.to_json())
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.shield(self._relaying)
        except TimeoutError:
            raise StartError(f"{RELAY} does not start: see its output") from None

    async def ended(self) -> int:
        """Wait until the relay ends; return its exit code, which is negative for a signal."""
        await self._ended.wait()
        return await asyncio.to_thread(self._process.wait)

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    async def stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        await asyncio.to_thread(self._reader.join)
        self._process.stdout.close()
        if self._relaying.done():
            self._relaying.exception()  # retrieve it, or asyncio logs it

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._pass_on(json.loads(line))
        self._pass_on({"event": "ended"})

    def _pass_on(self, fields: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._on_line, fields, context=self._context)

    def _on_line(self, fields: dict[str, Any]) -> None:
        event = fields.pop("event")
        if event == "relaying":
            self._relaying.set_result(None)
        elif event == "failed":
            self._relaying.set_exception(CertificateError(fields["error"], fields["about"]))
        elif event == "ended":
            self._ended.set()
            if not self._relaying.done():
                self._relaying.set_exception(StartError(f"{RELAY} ended: see its output"))
        else:
            self._on_report(event, fields)


def listen(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Open one socket for each address of `host`, all on the same port. Raises PortInUse.

    With `reuse_port`, other processes that also set it may listen on that port. The kernel
    distributes connections among the processes.
    """
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            listeners.append(_bound(family, (*address[:1], port, *address[2:]), reuse_port))
            port = listeners[0].getsockname()[1]
    except OSError as error:
        for listener in listeners:
            listener.close()
        target = join_address(host, port)
        problem = f"cannot listen on {target}: {error.strerror}; choose another"
        raise PortInUse(problem, target) from None
    return listeners


def _bound(family: int, address: tuple[Any, ...], reuse_port: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # "::" accepts IPv4 too; the IPv4 addresses of a name have their own sockets.
            both = address[0] == "::"
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def private_directory() -> Path:
    """Create a private directory. Raises StartError.

    It is in the directory for temporary files (TMPDIR), or in /tmp if that path is too long for a
    socket.
    """
    try:
        given = Path(tempfile.gettempdir())
        fits = len(str(given / "aerobee-12345678")) <= MAX_DIRECTORY
        return Path(tempfile.mkdtemp(prefix="aerobee-", dir=given if fits else "/tmp"))
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise StartError(
            f"no directory can be made for the sockets of TLS: {error.strerror}{where}; "
            f"set TMPDIR to one with a path of at most {MAX_DIRECTORY - 17} characters, or "
            "tlsServerMode=disabled",
            "TMPDIR",
        ) from None
