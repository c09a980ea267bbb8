"""The other end of a `ServerConnection` in memory: the test writes the frames of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aerobee_http2 import frames
from aerobee_http2.frames import END_HEADERS, END_STREAM, frame
from aerobee_http2.framing import receive_buffer
from aerobee_http2.hpack import Fields, decode, encoded
from aerobee_http2.request_head import RequestHead
from aerobee_http2.server import Accept, ServerConnection, ServerLimits
from aerobee_http2.server_stream import ServerStream
from support.client.http2_server import FakeTransport, Frame, message, receive

PATH = "/test.Service/Method"
FIELDS: Fields = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
BLOCK = encoded(FIELDS)


class FakeCall(ServerStream):
    """A call that asks for its first message at once, and keeps what happens."""

    def __init__(self, head: RequestHead, lookahead: int, limit: int, *, asks: bool) -> None:
        super().__init__(head, lookahead, limit)
        self.asks = asks
        self.messages: list[bytes | None] = []
        self.problem: tuple[str, str] | None = None
        self.sent_bytes = 0
        self.cancelled: bool | None = None  # None until it is over

    def begun(self) -> None:
        if self.asks:
            self.ask()

    def message(self, message: bytes | None) -> None:
        self.messages.append(message)

    def unreadable(self, status: str, problem: str) -> None:
        self.problem = status, problem
        self.cut(status, problem)

    def sent(self, size: int) -> None:
        self.sent_bytes += size

    def over(self, was_cancelled: bool) -> None:
        assert self.cancelled is None, "it ends once"
        self.cancelled = was_cancelled


class FakeClient:
    """A connection whose client has sent its preface and settings, unless `opens` is false.

    `calls` are those that the server has accepted, if no other function `accept`s them. They have a
    lookahead of 64 KiB, and messages of up to 1 MiB. Connections may share a `buffer`.
    """

    def __init__(
        self,
        *settings: tuple[int, int],
        limits: ServerLimits | None = None,
        opens: bool = True,
        asks: bool = True,
        accept: Accept | None = None,
        buffer: memoryview | None = None,
    ) -> None:
        self.now_s = 100.0
        self.transport = FakeTransport()
        self.made: list[ServerConnection] = []
        self.closed: list[ServerConnection] = []
        self.calls: list[FakeCall] = []
        self.asks = asks
        self._at_end: list[Callable[[], None]] = []
        self.server = ServerConnection(
            asyncio.get_running_loop(),
            receive_buffer() if buffer is None else buffer,
            limits or ServerLimits(lookahead_bytes=65_535),
            accept=accept or self._accept,
            at_end=self._at_end.append,
            now_s=lambda: self.now_s,
            on_made=self.made.append,
            on_closed=self.closed.append,
            silent_at_s=self.now_s + 10,
        )
        self.server.connection_made(self.transport)
        self.opening = self.taken()
        if opens:
            self.send(frames.PREFACE, frames.settings(*settings))
            assert self.taken() == [Frame(frames.SETTINGS, frames.ACK, 0, b"")]

    def _accept(self, _connection: ServerConnection, head: RequestHead) -> FakeCall | bytes | None:
        if head.path != PATH:
            return encoded((("grpc-status", "12"),))
        self.calls.append(FakeCall(head, 65_535, 1024 * 1024, asks=self.asks))
        return self.calls[-1]

    def send(self, *data: bytes) -> None:
        receive(self.server, b"".join(data))

    def ask(self, stream: int = 1, body: bytes = b"q") -> FakeCall:
        """Make a unary call."""
        self.send(
            frame(frames.HEADERS, END_HEADERS, stream, BLOCK),
            frame(frames.DATA, END_STREAM, stream, message(body)),
        )
        return self.calls[-1]

    def taken(self) -> list[Frame]:
        """What the server has written since the last call, at the end of its turn."""
        actions, self._at_end[:] = list(self._at_end), []
        for action in actions:
            action()
        written, found, at = bytes(self.transport.written), [], 0
        self.transport.written.clear()
        self.transport.unread = 0
        while at < len(written):
            word, flags, stream = frames.HEAD.unpack_from(written, at)
            at += frames.HEAD_BYTES + (word >> 8)
            found.append(Frame(word & 0xFF, flags, stream, written[at - (word >> 8) : at]))
        return found

    def end(self) -> str:
        """How the server has closed the socket: "", "closed" or "aborted"."""
        return self.transport.closed

    def statuses(self) -> dict[int, dict[str, str]]:
        """The last header fields of each stream that the server has ended since the last call."""
        return {
            each.stream: dict(decode(each.payload))
            for each in self.taken()
            if each.kind == frames.HEADERS and each.flags & END_STREAM
        }

    def farewell(self) -> tuple[int, bytes]:
        """The error code and the reason of the GOAWAY frame that the server wrote last."""
        last = self.taken()[-1]
        assert last.kind == frames.GOAWAY
        return int.from_bytes(last.payload[4:8]), last.payload[8:]
