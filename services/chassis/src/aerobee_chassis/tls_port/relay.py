"""Run the process that serves a TLS port, and relay bytes to the server's Unix domain socket.

The relay reads the first byte of each connection. If the client uses TLS, the relay terminates TLS,
or passes the connection as it is to another socket of the server. It does not interpret gRPC.
Before that, a connection from the network of a load balancer must have a header of the PROXY
protocol (`proxy_protocol`). The address in it is that of the client.

    python -m aerobee_chassis.tls_port.relay        started by `supervisor`, not by hand

The first line of its stdin is a `RelaySettings` as JSON. Later, the word "drain" makes it stop
accepting connections. At the end of stdin it exits, so it never runs longer than its server. Its
stdout has one JSON object per line: events for the server to log or to count.

It has one thread and one buffer. It imports few modules and takes 10 MB. It imports `ssl` when a
certificate is given, or when the first client uses TLS.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import sys
import types

from aerobee_chassis.errors import CertificateError
from aerobee_chassis.open_files import allow_many_files
from aerobee_chassis.tls_port.certificates import Certificates
from aerobee_chassis.tls_port.connection import CHUNK_BYTES, Connection, Kept
from aerobee_chassis.tls_port.poller import IN, OUT, Poller
from aerobee_chassis.tls_port.proxy_protocol import (
    MAX_BYTES,
    MalformedHeader,
    begins_header,
    parse,
)

TYPE_CHECKING = False  # importing `typing` and `dataclasses` would take 3 MB
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from aerobee_chassis.tls_port.connection import End
    from aerobee_chassis.tls_port.settings import RelaySettings
    from aerobee_chassis.tls_port.tls import TlsEnd

STDIN = 0
# The first byte of a TLS handshake record. An HTTP/2 connection begins with "P".
TLS_FIRST_BYTE = b"\x16"
FIRST_BYTES = 6  # HTTP/2, TLS and the PROXY protocol begin with others
# The pause between attempts to connect to the server while its backlog is full.
BACKEND_RETRY_S = 0.02
# The pause while no file descriptors are left; new connections stay in the backlog.
ACCEPT_PAUSE_S = 0.2
ACCEPTS_AT_ONCE = 64
REPORT_COUNTS_S = 0.5
REPORT_REFUSED_S = 10.0  # between two lines of the log about refused connections


class Hello:
    """A connection before its bytes are relayed.

    The steps are: header of the PROXY protocol if the peer `is_balancer`, first byte, TLS
    handshake, connection to the server.
    """

    __slots__ = ("_client", "_header", "_peer", "_relay", "over")

    def __init__(
        self, relay: Relay, client: socket.socket, peer: str, *, is_balancer: bool
    ) -> None:
        self._relay = relay
        self._client: End = client
        self._peer = peer  # "" if the connection does not count
        self._header = b""  # the part that has arrived
        self.over = False
        step = self._read_header if is_balancer else self._first_byte
        relay.poller.wait_for(client.fileno(), IN, lambda _: step(client))

    def give_up(self) -> None:
        if not self.over and self._peer:
            self._relay.left(self._peer)
        self.over = True
        self._relay.poller.forget(self._client.fileno())
        self._client.close()

    def time_out(self) -> None:
        if not self.over:
            self._relay.count("silent")
            self.give_up()

    def _read_header(self, client: socket.socket) -> None:
        """Read the header, and no byte after it."""
        arrived = peek(client, MAX_BYTES - len(self._header))
        if arrived is None:
            return
        relay = self._relay
        try:
            if not arrived:
                raise MalformedHeader("the connection has ended")
            found = parse(self._header + arrived)
        except MalformedHeader:
            relay.count("refused_headers")
            self.give_up()
            return
        if found is None:
            self._header += client.recv(len(arrived))
            return
        size, address = found
        client.recv(size - len(self._header))
        self._header = b""
        if address is not None and not self._rename(text_of(address)):
            return
        relay.poller.wait_for(client.fileno(), IN, lambda _: self._first_byte(client))

    def _rename(self, peer: str) -> bool:
        """Count the connection for the client. Return False if it has too many."""
        self._relay.left(self._peer)
        self._peer = peer if self._relay.joined(peer) else ""
        if not self._peer:
            self.give_up()
        return bool(self._peer)

    def _first_byte(self, client: socket.socket) -> None:
        arrived = peek(client, FIRST_BYTES)
        if arrived is None:
            return
        relay = self._relay
        if not arrived:
            self.give_up()
        elif begins_header(arrived):
            relay.count("refused_headers")
            self.give_up()
        elif arrived[:1] == TLS_FIRST_BYTE and relay.settings.tls_backend:
            relay.count("tls")
            self._connect(relay.settings.tls_backend)
        elif arrived[:1] == TLS_FIRST_BYTE:
            relay.poller.forget(client.fileno())
            relay.certificates.when_ready(lambda context: self._speak_tls(context, client))
        elif relay.settings.tls.mode == "enforcing":
            why = "it uses plaintext, and tlsServerMode is enforcing"
            relay.refuse("refused_plaintext", self._peer, why)
            self.give_up()
        else:
            relay.count("plaintext")
            self._connect(relay.settings.backend)

    def _speak_tls(self, context: ssl.SSLContext, client: socket.socket) -> None:
        if self.over:
            return
        from aerobee_chassis.tls_port.tls import TlsEnd

        try:
            self._client = end = TlsEnd(context, client)
        except OSError:  # the client has hung up
            self.give_up()
            return
        self._handshake(end)

    def _handshake(self, end: TlsEnd) -> None:
        try:
            agreed = end.handshake()
        except OSError as error:
            why = str(getattr(error, "reason", None) or error.strerror or error)
            self._relay.refuse("failed_handshakes", self._peer, f"the handshake failed: {why}")
            self.give_up()
            return
        if agreed:
            self._relay.count("tls")
            settings = self._relay.settings
            self._connect(settings.backend, settings.tls_mark)
        else:
            interest = OUT if agreed is False else IN
            self._relay.poller.wait_for(end.fileno(), interest, lambda _: self._handshake(end))

    def _connect(self, server: str, mark: str = "") -> None:
        """Connect to the socket `server` from a socket that is named after the client's address.

        The server then sees that address as its peer.
        """
        relay = self._relay
        relay.poller.forget(self._client.fileno())
        path = relay.path_of(mark + self._peer)
        try:
            backend = socket.socket(socket.AF_UNIX)
            backend.setblocking(False)
            backend.bind(path)
            os.unlink(path)
        except OSError:  # no file descriptors are left
            self.give_up()
            return
        self._dial(backend, server)

    def _dial(self, backend: socket.socket, server: str) -> None:
        relay = self._relay
        if self.over:
            backend.close()
            return
        try:
            backend.connect(server)
        except BlockingIOError:  # its backlog is full
            relay.poller.call_later(BACKEND_RETRY_S, lambda: self._dial(backend, server))
            return
        except OSError:
            backend.close()
            self.give_up()
            return
        self.over = True
        relay.open(self._client, backend, self._peer)


class Relay:
    def __init__(self, settings: RelaySettings, report: Callable[..., None]) -> None:
        self.settings = settings
        self.poller = Poller()
        self._directory = os.path.dirname(settings.backend)
        self.certificates = Certificates(settings.tls, self._directory, self.poller, report)
        self._report = report
        self._counts: dict[str, int] = {}
        self._has_reported = False  # a refused connection, a moment ago
        self._open: dict[str, int] = {}  # connections by host
        self._open_count = 0
        self._buffer = memoryview(bytearray(CHUNK_BYTES))
        self._kept = Kept()
        self._listeners = [socket.socket(fileno=fd) for fd in settings.listeners]
        self._is_balancer = is_in(settings.trusted) if settings.trusted else lambda _: False

    def run(self) -> None:
        """Run until stdin ends. Raises CertificateError."""
        self.certificates.start()
        os.set_blocking(STDIN, False)
        self.poller.wait_for(STDIN, IN, self._command)
        for listener in self._listeners:
            listener.setblocking(False)
        self._listen()
        self._report("relaying")
        self.poller.run()

    def open(self, client: End, backend: End, peer: str) -> None:
        on_close = functools.partial(self.left, peer)
        Connection(
            self.poller, client, backend, self._buffer, self._kept, on_close=on_close
        ).start()

    def joined(self, peer: str, *, is_balancer: bool = False) -> bool:
        """Count a new connection. Return False if there are too many, also of its address.

        The connections of a load balancer are those of its clients: they have no limit together.
        """
        host, settings = host_of(peer), self.settings
        count = self._open.get(host, 0)
        if self._open_count >= settings.max_connections:
            self.count("too_many")
            return False
        if count >= settings.max_per_address and not is_balancer:
            self.count("too_many_of_address")
            return False
        self._open[host] = count + 1
        self._open_count += 1
        return True

    def left(self, peer: str) -> None:
        """Count the end of a connection."""
        host = host_of(peer)
        self._open_count -= 1
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]

    def path_of(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _command(self, _: int) -> None:
        word = os.read(STDIN, 64)
        for listener in self._listeners:
            self.poller.forget(listener.fileno())
            listener.close()
        self._listeners.clear()
        if not word:
            self.poller.stop()

    def _listen(self) -> None:
        for listener in self._listeners:
            self.poller.wait_for(listener.fileno(), IN, functools.partial(self._accept, listener))

    def _accept(self, listener: socket.socket, _: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                client, address = listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._report("accept_failed", error=error.strerror)
                for listening in self._listeners:
                    self.poller.forget(listening.fileno())
                self.poller.call_later(ACCEPT_PAUSE_S, self._listen)
                return
            peer = text_of(address)
            is_balancer = self._is_balancer(host_of(peer))
            if not self.joined(peer, is_balancer=is_balancer):
                client.close()
                continue
            client.setblocking(False)
            with contextlib.suppress(OSError):  # the client has hung up
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = Hello(self, client, peer, is_balancer=is_balancer)
            self.poller.call_later(self.settings.hello_timeout_ms / 1000, hello.time_out)

    def count(self, name: str) -> None:
        if not self._counts:
            self.poller.call_later(REPORT_COUNTS_S, self._report_counts)
        self._counts[name] = self._counts.get(name, 0) + 1

    def refuse(self, name: str, peer: str, reason: str) -> None:
        """Count a client that is refused, and report the first one of REPORT_REFUSED_S."""
        self.count(name)
        if not self._has_reported:
            self._has_reported = True
            self.poller.call_later(REPORT_REFUSED_S, self._report_again)
            self._report("connection_refused", peer=peer, reason=reason)

    def _report_again(self) -> None:
        self._has_reported = False

    def _report_counts(self) -> None:
        """Report the counts since the last report."""
        counts, self._counts = self._counts, {}
        self._report("counted", **counts)


def peek(client: socket.socket, size: int) -> bytes | None:
    """Return up to `size` bytes that have arrived, or b"" at the end. They stay to be read.

    Return None if no bytes have arrived.
    """
    try:
        return client.recv(size, socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def is_in(networks: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that says whether a host, as in "host:port", is in one of the networks."""
    import ipaddress  # only with load balancers: it takes 1 MB

    known = [ipaddress.ip_network(network) for network in networks]

    def contains(host: str) -> bool:
        address = ipaddress.ip_address(host.strip("[]"))
        return any(address in network for network in known)

    return contains


def text_of(address: tuple[str, int]) -> str:
    """Return "host:port" of an address from `accept`, with an IPv6 host in brackets."""
    host, port = address[:2]
    host = host.removeprefix("::ffff:") if "." in host else host.partition("%")[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(peer: str) -> str:
    """Return the host of "host:port"."""
    return peer.rpartition(":")[0]


def report(event: str, **fields: object) -> None:
    """Write an event to stdout. Raises BrokenPipeError if the server has exited."""
    os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")


def main() -> int:
    # Ctrl-C reaches every process of a terminal. The server stops in order, and then ends this
    # process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    line = read_line()
    if not line:
        return 0
    # The result has the attributes of the dataclass, without importing it.
    settings: RelaySettings = json.loads(line, object_hook=lambda v: types.SimpleNamespace(**v))
    allow_many_files()  # a connection takes two descriptors
    try:
        Relay(settings, report).run()
    except CertificateError as error:
        report("failed", error=str(error), about=error.about)
        return 1
    except BrokenPipeError:
        pass  # the server has exited
    # A server that was killed has not removed its directory.
    remove(os.path.dirname(settings.backend))
    return 0


def read_line() -> str:
    """Read the first line of stdin, byte by byte, or return "" if stdin has ended.

    Later bytes of stdin are left for `Relay`.
    """
    line = b""
    while byte := os.read(STDIN, 1):
        if byte == b"\n":
            return line.decode()
        line += byte
    return ""


def remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        os.rmdir(directory)


if __name__ == "__main__":
    sys.exit(main())
