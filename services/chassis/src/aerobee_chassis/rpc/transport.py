"""What a transport is: a listener that runs methods for callers, and channels to other services.

There are two: grpc.aio (`aio`), and gRPC's completion queue at which the loop waits itself
(`completion_queue`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError, Message

from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.in_flight import LOOKAHEAD_BYTES, MAX_MESSAGE_BYTES, InFlight
from aerobee_chassis.rpc.services import Method

CHANNEL_CLOSED = "CANCELLED", "the channel is closed"  # status and message of a call after that
CALL_ENDED = "UNAVAILABLE", "the other side has ended the call"  # of a write after that

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", -1),
    # How much of a request gRPC takes before it is read. By default it finds out how much is on
    # its way, and takes as much: several MiB of each.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
    # By default two servers may share a port, and its calls, unnoticed: refuse the second.
    ("grpc.so_reuseport", 0),
    # A silent peer is pinged, and its connection closed when no answer comes: a consumer's machine
    # may vanish without closing its own, and its leases must not be renewed for hours.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.http2.ping_timeout_ms", 30_000),
    # Clients ping on idle connections, for which gRPC by default closes them.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # Thousands of long polls wait at once: by default grpc cancels them beyond about 3,000.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 200_000),
)

# A server that comes back is found again within a second (grpc's default: 120 s), and one that is
# frozen or cut off is noticed after 20 s.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
)

# Runs one method of the service with that name; raises nothing but CancelledError. None: the
# handler has written all responses to the call.
Run = Callable[[str, Method, Any, Call], Awaitable[Message | Failure | None]]


# How a call of this method ends when too much is in flight.
Refuse = Callable[[Method], Message | Failure]


def server_options(in_flight: InFlight) -> tuple[tuple[str, int], ...]:
    return (*SERVER_OPTIONS, ("grpc.max_receive_message_length", in_flight.largest_request))


class Listener(Protocol):
    """Serves services on one port; to be used on one event loop."""

    def bind(self, target: str) -> int:
        """Takes the port of "host:port", 0 for a free one. Raises OSError."""

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, waits up to `grace_s` for those in progress, then cancels them."""


class Exchange(Protocol):
    """A call in which both sides write messages when they like. One task reads, one writes.

    It ends with the caller's block, and with a read or write that is cancelled: what the other side
    has not ended by then is cancelled for it too.
    """

    async def write(self, message: bytes) -> None:
        """Returns when the message is on its way: the other side's flow control lets it pass.
        Raises CallFailed: the call is over, and the message may not have been read."""

    async def done_writing(self) -> None:
        """The other side reads to the end of what was written; it may go on writing. Does nothing
        when the call is over."""

    async def read(self) -> bytes | None:
        """The next message; None: the other side has ended the call. Raises CallFailed."""


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """For a channel in TLS; each in PEM. `authorities`: one of these signed the certificate of the
    other side. `certificate`, `key`: of this side; empty: it shows none."""

    authorities: bytes
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)

    @property
    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            self.authorities, self.key or None, self.certificate or None
        )


class Channel(Protocol):
    """Connects when it is first used, and again after the connection was lost."""

    async def unary(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """`path`: "/package.Service/Method". Raises CallFailed."""

    def stream(self, path: str, request: bytes) -> AsyncGenerator[bytes, None]:
        """The messages of a server stream. Raises CallFailed."""

    def exchange(
        self, path: str, timeout_s: float | None = None
    ) -> AbstractAsyncContextManager[Exchange]:
        """A call with streams both ways; of its whole duration, `timeout_s`. Raises CallFailed."""

    async def close(self) -> None:
        """Calls in progress, and those that begin after it, fail with CANCELLED."""


class CallFailed(Exception):
    """A call whose status is not OK."""

    def __init__(
        self, status: str, message: str, trailers: tuple[tuple[str, str | bytes], ...] = ()
    ) -> None:
        """`status`: name of a gRPC status, e.g. "NOT_FOUND"."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.trailers = trailers


class UnreadableRequest(Exception):
    """The bytes of a request are no message of its type."""


def serialized(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def parsed(method: Method, data: bytes) -> Any:
    """Raises UnreadableRequest."""
    try:
        return method.request.FromString(data)
    except DecodeError as error:
        raise UnreadableRequest from error


async def parsed_each(method: Method, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """Raises UnreadableRequest."""
    async for data in requests:
        yield parsed(method, data)
