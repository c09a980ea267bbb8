"""Keep the streams that carry replies to the clients that sent the requests.

The RPC that brings a reply writes it to the stream, and is answered after that. A reply is never
stored, so only RPCs wait here. The data is in memory only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aerobee_broker.errors import MessageIllegal, RequesterAbsent, TooManyReplies
from aerobee_chassis.clock import Clock

# A client reopens a broken stream within this time. Until then a replier should retry.
RETURN_MS = 5_000
MAX_WAITING = 1_000  # replies waiting for one client that does not read them


@dataclass(frozen=True, slots=True)
class Reply:
    correlation_id: str
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)


Write = Callable[[Reply], Awaitable[None]]


class ReplyStream:
    """The stream that carries replies to one client."""

    def __init__(self, client_id: str, write: Write) -> None:
        self.client_id = client_id
        self._write = write
        self._waiting = 0

    async def write(self, reply: Reply) -> None:
        """Write a reply. Raises TooManyReplies, or RequesterAbsent if the stream ends meanwhile."""
        if self._waiting >= MAX_WAITING:
            raise TooManyReplies(self.client_id, self._waiting)
        self._waiting += 1
        try:
            await self._write(reply)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the replier has disconnected
            raise RequesterAbsent(self.client_id, may_return=True) from None
        finally:
            self._waiting -= 1


class ReplyStreams:
    """The open streams. `max_body_size` is the limit of a reply's body, in bytes."""

    def __init__(self, clock: Clock, max_body_size: int) -> None:
        self._clock = clock
        self._max_body_size = max_body_size
        self._started_ms = clock.monotonic_ms()
        self._streams: dict[str, ReplyStream] = {}
        # Clients whose stream broke → when (monotonic), oldest first.
        self._broken: dict[str, int] = {}

    def use(self, max_body_size: int) -> None:
        """Use another limit of bodies, in bytes."""
        self._max_body_size = max_body_size

    def open(self, client_id: str, write: Write) -> ReplyStream:
        """Send replies to the client with `write` from now on."""
        stream = self._streams[client_id] = ReplyStream(client_id, write)
        self._broken.pop(client_id, None)
        return stream

    def close(self, stream: ReplyStream) -> None:
        """Close a stream that broke or whose client left, unless the client has a new one."""
        if self._streams.get(stream.client_id) is not stream:
            return
        del self._streams[stream.client_id]
        now_ms = self._clock.monotonic_ms()
        for client_id, at_ms in list(self._broken.items()):
            if now_ms - at_ms < RETURN_MS:
                break
            del self._broken[client_id]
        self._broken[stream.client_id] = now_ms

    def client_left(self, client_id: str) -> None:
        """Forget the client's broken stream, because the client has reported that it stops."""
        self._broken.pop(client_id, None)

    async def pass_on(self, client_id: str, reply: Reply) -> None:
        """Write the reply to the stream of the client, and return after it is written.

        Raises MessageIllegal, RequesterAbsent, TooManyReplies.
        """
        size = len(reply.body)
        if size > self._max_body_size:
            raise MessageIllegal(
                f"the reply has {size} bytes: at most {self._max_body_size} (maxMessageSize)",
                "maxMessageSize",
            )
        stream = self._streams.get(client_id)
        if stream is None:
            raise RequesterAbsent(client_id, may_return=self._may_return(client_id))
        await stream.write(reply)

    def _may_return(self, client_id: str) -> bool:
        since_ms = max(self._started_ms, self._broken.get(client_id, self._started_ms))
        return self._clock.monotonic_ms() - since_ms < RETURN_MS
