"""The process behind a shared port: looks at the first byte of each connection, ends TLS where the
client speaks it, and passes bytes on to the server's unix domain socket. Knows no gRPC.

    python -m aerobee_chassis.tls_port.relay        started by `shared_port.front`, not by hand

Its stdin holds one JSON line, a `RelaySettings`, and then the word "drain" when no more connections
shall be taken. The end of stdin is the end of this process, so that it never outlives its server.
Its stdout tells, one JSON object a line, what the server is to log or to count.

One thread, one buffer. It imports little and weighs 10 MB; `ssl` comes with a given certificate, or
with the first client that speaks TLS.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import socket
import sys
import types

from aerobee_chassis.errors import CertificateError
from aerobee_chassis.tls_port.certificates import Certificates
from aerobee_chassis.tls_port.connection import CHUNK_BYTES, Connection
from aerobee_chassis.tls_port.poller import IN, OUT, Poller

TYPE_CHECKING = False  # `typing` and `dataclasses` would weigh 3 MB here
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from aerobee_chassis.tls_port.connection import End
    from aerobee_chassis.tls_port.settings import RelaySettings
    from aerobee_chassis.tls_port.tls import TlsEnd

STDIN = 0
# A TLS record that shakes hands; no HTTP/2 connection begins so.
TLS_FIRST_BYTE = b"\x16"
# The server accepts slower than clients connect: ask again rather than refuse.
BACKEND_RETRY_S = 0.02
# Out of file descriptors: those in the backlog wait on.
ACCEPT_PAUSE_S = 0.2
ACCEPTS_AT_ONCE = 64
TELL_COUNTS_S = 0.5


class Hello:
    """A connection until its bytes flow: first byte, agreement on TLS, the way to the server."""

    __slots__ = ("_client", "_peer", "_relay", "over")

    def __init__(self, relay: Relay, client: socket.socket, peer: str) -> None:
        self._relay = relay
        self._client: End = client
        self._peer = peer
        self.over = False
        relay.poller.wait_for(client.fileno(), IN, lambda _: self._first_byte(client))

    def give_up(self) -> None:
        self.over = True
        self._relay.poller.forget(self._client.fileno())
        self._client.close()

    def silent(self) -> None:
        """Its time is up."""
        if not self.over:
            self._relay.count("silent")
            self.give_up()

    def _first_byte(self, client: socket.socket) -> None:
        try:
            first = client.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        relay = self._relay
        if not first:
            self.give_up()
        elif first == TLS_FIRST_BYTE:
            relay.poller.forget(client.fileno())
            relay.certificates.when_ready(lambda context: self._speak_tls(context, client))
        elif relay.settings.tls.mode == "enforcing":
            relay.count("refused_plaintext")
            self.give_up()
        else:
            relay.count("plaintext")
            self._connect()

    def _speak_tls(self, context: ssl.SSLContext, client: socket.socket) -> None:
        if self.over:
            return
        from aerobee_chassis.tls_port.tls import TlsEnd

        try:
            self._client = end = TlsEnd(context, client)
        except OSError:  # gone meanwhile
            self.give_up()
            return
        self._handshake(end)

    def _handshake(self, end: TlsEnd) -> None:
        try:
            agreed = end.handshake()
        except OSError:
            self._relay.count("failed_handshakes")
            self.give_up()
            return
        if agreed:
            self._relay.count("tls")
            self._connect()
        else:
            interest = OUT if agreed is False else IN
            self._relay.poller.wait_for(end.fileno(), interest, lambda _: self._handshake(end))

    def _connect(self) -> None:
        """Dials the server under the client's name, so that it sees whom it serves."""
        relay = self._relay
        relay.poller.forget(self._client.fileno())
        name = relay.name_of(self._peer)
        try:
            backend = socket.socket(socket.AF_UNIX)
            backend.setblocking(False)
            backend.bind(name)
            os.unlink(name)
        except OSError:  # no file descriptor left
            self.give_up()
            return
        self._dial(backend)

    def _dial(self, backend: socket.socket) -> None:
        relay = self._relay
        if self.over:
            backend.close()
            return
        try:
            backend.connect(relay.settings.backend)
        except BlockingIOError:  # its backlog is full
            relay.poller.call_later(BACKEND_RETRY_S, lambda: self._dial(backend))
            return
        except OSError:
            backend.close()
            self.give_up()
            return
        self.over = True
        relay.open(self._client, backend)


class Relay:
    def __init__(self, settings: RelaySettings, tell: Callable[..., None]) -> None:
        self.settings = settings
        self.poller = Poller()
        self._directory = os.path.dirname(settings.backend)
        self.certificates = Certificates(settings.tls, self._directory, self.poller, tell)
        self._tell = tell
        self._counts: dict[str, int] = {}
        self._buffer = memoryview(bytearray(CHUNK_BYTES))
        self._listeners = [socket.socket(fileno=fd) for fd in settings.listeners]

    def run(self) -> None:
        """Until stdin ends. Raises CertificateError."""
        self.certificates.start()
        os.set_blocking(STDIN, False)
        self.poller.wait_for(STDIN, IN, self._command)
        for listener in self._listeners:
            listener.setblocking(False)
        self._listen()
        self._tell("relaying")
        self.poller.run()

    def open(self, client: End, backend: End) -> None:
        Connection(self.poller, client, backend, self._buffer).start()

    def name_of(self, peer: str) -> str:
        return f"{self._directory}/{peer}"

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
                self._tell("cannot accept", error=error.strerror)
                for one in self._listeners:
                    self.poller.forget(one.fileno())
                self.poller.call_later(ACCEPT_PAUSE_S, self._listen)
                return
            client.setblocking(False)
            with contextlib.suppress(OSError):  # gone already
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = Hello(self, client, text_of(address))
            self.poller.call_later(self.settings.hello_timeout_ms / 1000, hello.silent)

    def count(self, what: str) -> None:
        if not self._counts:
            self.poller.call_later(TELL_COUNTS_S, self._tell_counts)
        self._counts[what] = self._counts.get(what, 0) + 1

    def _tell_counts(self) -> None:
        """What happened since the last time."""
        counts, self._counts = self._counts, {}
        self._tell("counted", **counts)


def text_of(address: tuple[str, int]) -> str:
    """ "host:port" of what `accept` says, in brackets if IPv6."""
    host, port = address[:2]
    host = host.removeprefix("::ffff:") if "." in host else host.partition("%")[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tell(event: str, **fields: object) -> None:
    """Raises BrokenPipeError when the server is gone."""
    os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")


def main() -> int:
    # Ctrl-C reaches every process of a terminal: the server stops in order, and then this one.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    line = read_line()
    if not line:
        return 0
    # In the shape of the dataclass, without loading it.
    settings: RelaySettings = json.loads(line, object_hook=lambda v: types.SimpleNamespace(**v))
    allow_many_files()
    try:
        Relay(settings, tell).run()
    except CertificateError as error:
        tell("failed", error=str(error))
        return 1
    except BrokenPipeError:
        pass  # nobody reads what is told: the server is gone, and the relay with it
    # Its server may have been killed.
    remove(os.path.dirname(settings.backend))
    return 0


def read_line() -> str:
    """Byte by byte: what follows belongs to the relay. Empty: the server is gone."""
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


def allow_many_files() -> None:
    """A connection takes two descriptors; many systems give 1,024 unless asked."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
