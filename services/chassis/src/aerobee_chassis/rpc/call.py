"""What a handler sees of an RPC. Knows no transport: handlers are the same over each.

A handler is a coroutine over plain messages:

    async def get_route(self, request: RouteRequest, call: Call) -> RouteResponse      # unary
    async def watch(self, request: WatchRequest, call: Call) -> None           # server stream
    async def collect(self, requests: AsyncIterator[Part], call: Call) -> Sum  # client stream
    async def talk(self, requests: AsyncIterator[Line], call: Call) -> None    # both ways

A stream of the server ends when its handler returns; a message that it returns is the last. A
stream of requests ends after the caller's last. A handler whose caller has gone gets
CancelledError, or the end of its requests, whichever is noticed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from google.protobuf.message import Message


class Call(Protocol):
    """One RPC in progress."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The caller's metadata, text values only; of a repeated key the last."""

    @property
    def peer(self) -> str:
        """The caller's address as "host:port" (IPv6 in brackets); "unix" for a local socket."""

    def time_remaining_s(self) -> float | None:
        """Seconds until the caller's deadline, or None when it set none."""

    def cancelled(self) -> bool:
        """Whether the caller has gone."""

    async def write(self, message: Message | bytes) -> None:
        """Sends one message of a server stream; bytes are a message that is serialized already.
        When two tasks write at once, one waits."""

    async def write_all(
        self, messages: Iterable[Message | bytes], *, more_follows: bool = False
    ) -> None:
        """Sends several in their order; returns when the last has been handed to gRPC. Cheaper than
        one by one.

        `more_follows`: the handler writes again at once, or ends. Then gRPC may hold these back, to
        send them together with the next.
        """


@dataclass(frozen=True, slots=True)
class Failure:
    """How a failed RPC ends for its caller."""

    status: str  # name of a gRPC status, e.g. "NOT_FOUND"
    message: str
    trailers: tuple[tuple[str, str], ...] = ()


class Handler(Protocol):
    """Returns the response; of a server stream the last one, or None if all were written. Where the
    caller streams, `request` is an AsyncIterator of requests."""

    async def __call__(self, request: Any, call: Call, /) -> Message | None: ...
