"""Define how a handler sees an RPC. It does not depend on the transport.

A handler is a coroutine that receives and returns protobuf messages:

    async def get_route(self, request: RouteRequest, call: Call) -> RouteResponse      # unary
    async def watch(self, request: WatchRequest, call: Call) -> None           # server stream
    async def collect(self, requests: AsyncIterator[Part], call: Call) -> Sum  # client stream
    async def talk(self, requests: AsyncIterator[Line], call: Call) -> None    # both ways

A server stream ends when its handler returns. A message that the handler returns is the last one of
the stream. A stream of requests ends after the caller's last request. If the caller disconnects,
the handler gets a CancelledError or the end of its requests, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import Message

from aerobee_wire.access.caller import Caller


class Call(Protocol):
    """An RPC in progress."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return the text values of the caller's metadata; the last value of a repeated key."""

    @property
    def peer(self) -> str:
        """Return the caller's "host:port" (IPv6 in brackets), or "unix" for a local socket."""

    @property
    def certificate_uris(self) -> tuple[str, ...]:
        """Return the URIs in the caller's certificate that TLS has verified; () without one."""

    @property
    def is_encrypted(self) -> bool:
        """Return whether the call came over TLS."""

    @property
    def caller(self) -> Caller:
        """Return who calls, as the server's access check has found out."""

    def time_remaining_s(self) -> float | None:
        """Return the seconds until the caller's deadline, or None without a deadline."""

    def delay_answer(self, seconds: float) -> None:
        """Send nothing more of the answer for some time. The call holds no request meanwhile."""

    async def write(self, message: Message | bytes) -> None:
        """Send one message of a server stream. Bytes are a message that is already serialized.

        If two tasks write at the same time, one of them waits.
        """

    async def write_all(self, messages: Iterable[Message | bytes]) -> None:
        """Send several messages in order, and return when the last message is on its way.

        This is cheaper than sending them one by one.
        """


@dataclass(frozen=True, slots=True)
class Failure:
    """The status, message and trailers that the caller of a failed RPC receives."""

    status: str  # name of a gRPC status, e.g. "NOT_FOUND"
    message: str
    trailers: tuple[tuple[str, str], ...] = ()


class Handler(Protocol):
    """A coroutine that handles an RPC and returns the response.

    For a server stream, it returns the last response, or None if it has written all of them. If the
    caller streams, `request` is an AsyncIterator of requests.
    """

    async def __call__(self, request: Any, call: Call, /) -> Message | None: ...
