"""The view that a handler has of an RPC. It is the same for each transport.

A handler is a coroutine over plain messages:

    async def get_route(self, request: RouteRequest, call: Call) -> RouteResponse      # unary
    async def watch(self, request: WatchRequest, call: Call) -> None           # server stream
    async def collect(self, requests: AsyncIterator[Part], call: Call) -> Sum  # client stream
    async def talk(self, requests: AsyncIterator[Line], call: Call) -> None    # both ways

A server stream ends when its handler returns; a message that the handler returns is the last one. A
stream of requests ends after the caller's last request. If the caller leaves, the handler gets
CancelledError or the end of its requests, whichever is noticed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import Message


class Call(Protocol):
    """An RPC in progress."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return the caller's metadata, text values only; of a repeated key, the last value."""

    @property
    def peer(self) -> str:
        """Return the caller's "host:port" (IPv6 in brackets); "unix" for a local socket."""

    def time_remaining_s(self) -> float | None:
        """Return the seconds until the caller's deadline, or None if it set none."""

    def cancelled(self) -> bool:
        """Return whether the caller has left."""

    async def write(self, message: Message | bytes) -> None:
        """Send one message of a server stream; bytes are a message that is already serialized.

        If two tasks write at once, one waits.
        """

    async def write_all(
        self, messages: Iterable[Message | bytes], *, more_follows: bool = False
    ) -> None:
        """Send several messages in order; return when the last one was handed to gRPC.

        This is cheaper than sending them one by one. `more_follows`: the handler writes again at
        once, or ends. In that case, gRPC may hold these messages back, to send them together with
        the next ones.
        """


@dataclass(frozen=True, slots=True)
class Failure:
    """The way in which a failed RPC ends for its caller."""

    status: str  # name of a gRPC status, e.g. "NOT_FOUND"
    message: str
    trailers: tuple[tuple[str, str], ...] = ()


class Handler(Protocol):
    """A coroutine that returns the response.

    For a server stream, it returns the last response, or None if all were written. If the caller
    streams, `request` is an AsyncIterator of requests.
    """

    async def __call__(self, request: Any, call: Call, /) -> Message | None: ...
