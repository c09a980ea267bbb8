"""Define the interface of a transport: a listener that serves calls, and channels for calls.

There are two transports. On an ordinary event loop, its sockets carry all calls (`http2`). On
gRPC's completion queue, the event loop itself waits for calls (`completion_queue`).
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError, Message

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.connections import port_options
from aerobee_chassis.rpc.in_flight import (
    LOOKAHEAD_BYTES,
    MAX_MESSAGE_BYTES,
    InFlight,
    TooMuchInFlight,
)
from aerobee_chassis.rpc.services import Method
from aerobee_http2.connection import Times
from aerobee_wire.access.caller import ANYBODY, Caller

CHANNEL_CLOSED = "CANCELLED", "the channel is closed"  # status and message of a later call
CALL_ENDED = "UNAVAILABLE", "the other side has ended the call"  # of a later write

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", -1),
    # gRPC receives this much of a request before the server reads it. By default, gRPC probes the
    # bandwidth, and then receives several MiB of each request.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
    # By default, two servers may share a port and its calls, unnoticed. Reject the second one.
    ("grpc.so_reuseport", 0),
    # A silent peer is pinged, and its connection is closed if it does not answer. The machine of a
    # consumer may be lost without closing its connection. Then its leases must not be renewed for
    # hours.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.http2.ping_timeout_ms", 30_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Thousands of long polls wait at once. By default, grpc cancels them beyond about 3,000.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 200_000),
)


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """The times of a channel, and the largest request that it sends.

    A restarted server is found within a second (gRPC's default: 120 s). A server that is frozen or
    disconnected during a call is detected after 20 s, or 12 s after a call began.
    """

    times: Times = field(
        default_factory=partial(
            Times,
            first_backoff_s=0.1,
            last_backoff_s=1.0,
            connect_s=3.0,
            silence_s=2.0,
            keepalive_s=10.0,
            ping_timeout_s=10.0,
            pings_idle=False,
        )
    )
    max_request_bytes: int = MAX_MESSAGE_BYTES

    @property
    def of_grpc(self) -> tuple[tuple[str, int], ...]:
        """Return the options of gRPC."""
        times = self.times
        return (
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", self.max_request_bytes),
            ("grpc.initial_reconnect_backoff_ms", round(times.first_backoff_s * 1_000)),
            ("grpc.max_reconnect_backoff_ms", round(times.last_backoff_s * 1_000)),
            ("grpc.min_reconnect_backoff_ms", round(times.connect_s * 1_000)),
            ("grpc.keepalive_time_ms", round(times.keepalive_s * 1_000)),
            ("grpc.http2.ping_timeout_ms", round(times.ping_timeout_s * 1_000)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.enable_http_proxy", 0),
        )


CHANNEL_OPTIONS = ChannelOptions()

# Run one method of the service with that name. The result is None if the handler has written all
# responses to the call. Raises only CancelledError.
Run = Callable[[str, Method, Any, Call], Awaitable[Message | Failure | None]]


# Return the outcome of a call of this method when too many bytes are in flight.
Refuse = Callable[[Method, TooMuchInFlight], Message | Failure]


# Return the caller of a call before its request is read, or the failure if it may not call.
Admit = Callable[[str, Method, Call], Failure | Caller]


def admit_all(_service: str, _method: Method, _call: Call) -> Caller:
    """Admit each call (`Admit`)."""
    return ANYBODY


def server_options(
    in_flight: InFlight, limits: PortLimits, max_age_ms: int | None
) -> tuple[tuple[str, int], ...]:
    """Return the options of a port.

    After `max_age_ms`, a connection gets no new calls, and its calls continue without a limit. So
    clients connect again without a failed call.
    """
    age = () if max_age_ms is None else (("grpc.max_connection_age_ms", max_age_ms),)
    largest = ("grpc.max_receive_message_length", in_flight.largest_request)
    return (*SERVER_OPTIONS, *port_options(limits), largest, *age)


class PortTls(Protocol):
    """The certificates of a port. Both functions raise CertificateError."""

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of a port of gRPC's library."""

    def context(self) -> ssl.SSLContext:
        """Return the context for the next handshake, with the certificates of this moment."""


class Listener(Protocol):
    """Serve services on one port. Use the object on one event loop."""

    counts_connections: bool  # whether it enforces the limits of connections by address itself

    def bind(self, target: str, tls: PortTls | None = None) -> int:
        """Bind "host:port", with port 0 for a free port, and return the port. Raises OSError.

        Without `tls`, the port uses plaintext. Raises CertificateError.
        """

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, wait up to `grace_s` for running calls, and then cancel them."""


class Exchange(Protocol):
    """A call with streams in both directions. One task may read while another one writes.

    The call ends with the caller's `async with` block, and when a read or write is cancelled. If
    the other side has not ended the call by then, it is cancelled there too.
    """

    async def write(self, message: bytes) -> None:
        """Write a message, and return when flow control allows more messages.

        The other side may not have read the message yet. Raises CallFailed if the call has ended.
        """

    async def done_writing(self) -> None:
        """End the stream of written messages; the other side may continue to write.

        Do nothing if the call has ended.
        """

    async def read(self) -> bytes | None:
        """Return the next message, or None if the other side has ended the call.

        Raises CallFailed.
        """


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """The certificates of a TLS channel, in PEM.

    `authorities` contains the authorities that may have signed the certificate of the other side.
    `certificate` and `key` are presented to the other side; they are empty if this side presents
    none. `server_name` is the name that the certificate of the other side must have; if it is
    empty, this is the name of the host.
    """

    authorities: bytes
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    server_name: str = ""

    def of(self, path: str, broker_name: str = "") -> ChannelTls:
        """Return these certificates for each channel: they do not change (`CallerTls`)."""
        return self

    def reload(self) -> bool:
        return False

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            self.authorities, self.key or None, self.certificate or None
        )

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Return the options of a channel with these certificates."""
        name = self.server_name
        return (("grpc.ssl_target_name_override", name),) if name else ()


class Channel(Protocol):
    """Call the RPCs of one service process. It connects at the first call, and reconnects later."""

    async def unary(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """Call `path` ("/package.Service/Method"), and return the answer. Raises CallFailed."""

    def stream(self, path: str, request: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the messages of a server stream. Raises CallFailed."""

    def exchange(self, path: str) -> AbstractAsyncContextManager[Exchange]:
        """Start a call with streams in both directions. Raises CallFailed."""

    @property
    def is_idle(self) -> bool:
        """Return whether no call is running."""

    async def close(self) -> None:
        """Close the channel. Running calls and later calls fail with CANCELLED."""


class CallFailed(Exception):
    """A call ended with a status that is not OK."""

    def __init__(
        self, status: str, message: str, trailers: tuple[tuple[str, str | bytes], ...] = ()
    ) -> None:
        """Store the outcome. `status` is the name of a gRPC status, for example "NOT_FOUND"."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.trailers = trailers


class UnreadableRequest(Exception):
    """The bytes of a request are not a message of its type."""


def serialized(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def parsed(method: Method, data: bytes) -> Any:
    """Parse the bytes of a request. Raises UnreadableRequest."""
    try:
        return method.request.FromString(data)
    except DecodeError as error:
        raise UnreadableRequest from error


async def parsed_each(method: Method, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """Parse and yield the requests of a stream. Raises UnreadableRequest."""
    async for data in requests:
        yield parsed(method, data)
