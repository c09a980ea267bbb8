"""Find out how a new connection begins: a header of the PROXY protocol, TLS, or plaintext.

A connection from the network of a load balancer must begin with a header of the PROXY protocol
(`tls_port.proxy_protocol`). The address in it is that of the client. All other bytes stay in the
socket, for the protocol that reads them later.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from aerobee_chassis.addresses import join_address
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.connections import AcceptedConnections
from aerobee_chassis.rpc.transport import PortTls
from aerobee_chassis.tls_port.proxy_protocol import MAX_BYTES, MalformedHeader, begins_header, parse

# The first byte of a TLS handshake record. An HTTP/2 connection begins with "P".
TLS_FIRST_BYTE = b"\x16"
FIRST_BYTES = 6  # HTTP/2, TLS and the PROXY protocol begin with others
# A client in plaintext then knows that the port does not use HTTP/2 without TLS: a fatal alert of
# TLS 1.2, "unexpected message".
NO_PLAINTEXT = b"\x15\x03\x03\x00\x02\x02\x0a"


@dataclass(frozen=True, slots=True)
class AcceptedSocket:
    """A new connection whose client has sent its first byte.

    Attributes:
        socket: The socket, which does not block.
        host: The address of the client.
        address: "host:port" of the client.
        is_tls: Whether the client begins with TLS.
        silent_at_s: The time of `Hellos.now_s` at which the client must have begun with HTTP/2.
    """

    socket: socket.socket
    host: str
    address: str
    is_tls: bool
    silent_at_s: float


class Hellos:
    """The connections of a port whose clients have not sent their first byte.

    Args:
        loop: The event loop.
        counts: Decides which connections are kept.
        limits: The limits of the port.
        tls: The certificates of the port; None if it uses plaintext.
        trusted: The networks (CIDR) of load balancers that send headers of the PROXY protocol.
        now_s: Returns the time, by a clock that does not jump.
        accept: Gets each connection, and releases it in `counts` when it ends.
        report: Logs the address of a client that is refused, and the reason.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        counts: AcceptedConnections,
        limits: PortLimits,
        *,
        tls: PortTls | None,
        trusted: Iterable[str],
        now_s: Callable[[], float],
        accept: Callable[[AcceptedSocket], None],
        report: Callable[[str, str], None],
    ) -> None:
        self.loop = loop
        self.counts = counts
        self.limits = limits
        self.tls = tls
        self.now_s = now_s
        self.accept = accept
        self.report = report
        self._trusted = [ipaddress.ip_network(network) for network in trusted]
        self._open: set[Hello] = set()

    def begin(self, client: socket.socket, host: str, port: int) -> None:
        """Wait for the first byte of a connection. Close it if there are too many.

        The connections of a load balancer are those of its clients: they have no limit together.
        """
        is_balancer = self._is_balancer(host)
        if not self.counts.admit(host, is_limited=not is_balancer):
            client.close()
            return
        hello = Hello(self, client, host, port, has_header=is_balancer)
        self._open.add(hello)
        hello.begin()

    def ended(self, hello: Hello) -> None:
        self._open.discard(hello)

    def close(self) -> None:
        for hello in tuple(self._open):
            hello.refuse()

    def _is_balancer(self, host: str) -> bool:
        if not self._trusted:
            return False
        address = ipaddress.ip_address(host)
        return any(address in network for network in self._trusted)


class Hello:
    """A connection before its first byte: at first its header of the PROXY protocol, if any."""

    __slots__ = ("_client", "_has_header", "_header", "_hellos", "_host", "_port", "_silent_at_s",
                 "_timer")  # fmt: skip

    def __init__(
        self, hellos: Hellos, client: socket.socket, host: str, port: int, *, has_header: bool
    ) -> None:
        self._hellos = hellos
        self._client = client
        self._host = host
        self._port = port
        self._has_header = has_header
        self._header = b""  # the part that has arrived
        silent_s = hellos.limits.silent_ms / 1_000
        self._silent_at_s = hellos.now_s() + silent_s
        self._timer = hellos.loop.call_later(silent_s, self._time_out)

    def begin(self) -> None:
        self._hellos.loop.add_reader(self._client, self._read)
        self._read()  # the bytes have often arrived

    def refuse(self) -> None:
        """Close the connection."""
        self._end()
        self._client.close()
        self._hellos.counts.release(self._host)

    def _end(self) -> None:
        self._timer.cancel()
        self._hellos.loop.remove_reader(self._client)
        self._hellos.ended(self)

    def _time_out(self) -> None:
        self._hellos.limits.counts.silent += 1
        self.refuse()

    def _read(self) -> None:
        if not self._has_header or self._read_header():
            self._read_first_byte()

    def _read_header(self) -> bool:
        """Read the header, and no byte after it. Return whether the first byte is next."""
        arrived = peek(self._client, MAX_BYTES - len(self._header))
        if arrived is None:
            return False
        try:
            if not arrived:
                raise MalformedHeader("the connection has ended")
            found = parse(self._header + arrived)
        except MalformedHeader:
            self._refuse_header()
            return False
        size, address = found or (len(self._header) + len(arrived), None)
        taken = take(self._client, size - len(self._header))
        if not taken:  # the client has hung up
            self.refuse()
            return False
        if found is None:
            self._header += taken
            return False
        self._has_header, self._header = False, b""
        return address is None or self._rename(*address)

    def _rename(self, host: str, port: int) -> bool:
        """Count the connection for the client. Return False if it has too many."""
        counts = self._hellos.counts
        counts.release(self._host)
        self._host, self._port = plain_host(host), port
        if counts.admit(self._host):
            return True
        self._end()
        self._client.close()
        return False

    def _read_first_byte(self) -> None:
        arrived = peek(self._client, FIRST_BYTES)
        if arrived is None:
            return
        tls = self._hellos.tls
        is_tls = tls is not None and arrived[:1] == TLS_FIRST_BYTE
        if not arrived:
            self.refuse()
        elif begins_header(arrived):
            self._refuse_header()
        elif tls is not None and not is_tls and not tls.accepts_plaintext:
            self._refuse_plaintext()
        else:
            self._end()
            address = join_address(self._host, self._port)
            self._hellos.accept(
                AcceptedSocket(self._client, self._host, address, is_tls, self._silent_at_s)
            )

    def _refuse_header(self) -> None:
        self._hellos.limits.counts.refused_headers += 1
        self.refuse()

    def _refuse_plaintext(self) -> None:
        hellos = self._hellos
        hellos.limits.counts.refused_plaintext += 1
        address = join_address(self._host, self._port)
        hellos.report(address, "it uses plaintext, and tlsServerMode is enforcing")
        take(self._client, MAX_BYTES)  # unread bytes would replace the alert by a reset
        with suppress(OSError):  # the client has hung up
            self._client.send(NO_PLAINTEXT)
        self.refuse()


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


def take(client: socket.socket, size: int) -> bytes:
    """Return bytes that have arrived, or b"" if the connection has failed since then."""
    try:
        return client.recv(size)
    except OSError:
        return b""


def plain_host(host: str) -> str:
    """Return the host of an address of a socket as IPv4 if it is that, and without its scope."""
    return host.removeprefix("::ffff:") if "." in host else host.partition("%")[0]
