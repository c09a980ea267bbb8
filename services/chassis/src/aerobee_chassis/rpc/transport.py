"""Define the interface of a transport: a listener that serves calls, and channels for calls.

Sockets of the event loop carry all calls (`http2`). A test may replace them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from google.protobuf.message import DecodeError, Message

from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.in_flight import MAX_MESSAGE_BYTES, TooMuchInFlight
from aerobee_chassis.rpc.services import Method
from aerobee_http2.connection import Times
from aerobee_wire.access.caller import ANYBODY, Caller

CHANNEL_CLOSED = "CANCELLED", "the channel is closed"  # status and message of a later call
CALL_ENDED = "UNAVAILABLE", "the other side has ended the call"  # of a later write


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """The times of a channel, and the largest request that it sends.

    A restarted server is found within a second (with gRPC's defaults: 120 s). A server that is
    frozen or disconnected during a call is detected after 20 s, or 12 s after a call began.
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


CHANNEL_OPTIONS = ChannelOptions()

# Run one method of the service with that name. The result is None if the handler has written all
# responses to the call. Raises only CancelledError.
Run = Callable[[str, Method, Any, Call], Awaitable[Message | Failure | None]]


# Return the outcome of a call of this method when too many bytes are in flight.
Refuse = Callable[[Method, TooMuchInFlight], Message | Failure]


def refuse_plainly(_method: Method, error: TooMuchInFlight) -> Failure:
    """Refuse a call with the text of the error (`Refuse`)."""
    return Failure("RESOURCE_EXHAUSTED", str(error))


# Return the caller of a call before its request is read, or the failure if it may not call.
Admit = Callable[[str, Method, Call], Failure | Caller]


def admit_all(_service: str, _method: Method, _call: Call) -> Caller:
    """Admit each call (`Admit`)."""
    return ANYBODY


class PortTls(Protocol):
    """The certificates of a port."""

    @property
    def accepts_plaintext(self) -> bool:
        """Return whether the port also serves callers without TLS."""

    @property
    def max_age_ms(self) -> int | None:
        """Return how long a connection gets new calls. None: without a limit."""

    async def load(self) -> None:
        """Load the certificates that are in files. Raises CertificateError."""

    async def context(self) -> ssl.SSLContext:
        """Return the context for the next handshake, with the certificates of this moment.

        Raises CertificateError.
        """


class Listener(Protocol):
    """Serve services on one port. Use the object on one event loop."""

    def bind(self, target: str, listeners: Sequence[socket.socket] = ()) -> int:
        """Bind "host:port", with port 0 for a free port, and return the port. Raises PortInUse.

        If `listeners` are given, these are sockets that are already bound to it.
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
    none. `password` is that of an encrypted key. `server_name` is the name that the certificate of
    the other side must have; if it is empty, this is the name of the host.
    """

    authorities: bytes
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    password: str = field(default="", repr=False)
    server_name: str = ""

    def of(self, path: str, broker_name: str = "") -> ChannelTls:
        """Return these certificates for each channel: they do not change (`CallerTls`)."""
        return self

    def reload(self) -> bool:
        return False


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
