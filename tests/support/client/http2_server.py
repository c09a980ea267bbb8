"""The other end of a `Connection` in memory: it keeps what the client writes, as frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from aerobee_http2 import frames
from aerobee_http2.calls import PREFIX
from aerobee_http2.connection import Connection, Times
from aerobee_http2.frames import END_HEADERS, END_STREAM, frame
from aerobee_http2.framing import FrameReader, receive_buffer
from aerobee_http2.hpack import encoded

OK = encoded([(":status", "200"), ("content-type", "application/grpc")])
DONE = encoded([("grpc-status", "0")])
BLOCK = encoded([(":path", "/s/m")])


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def receive(reader: FrameReader, data: bytes) -> None:
    """Let a connection receive bytes, and then overwrite them as the next read would."""
    while data:
        buffer = reader.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        reader.buffer_updated(size)
        buffer[:size] = b"\xee" * size
        data = data[size:]


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.unread = 0  # bytes that the server does not read
        self.closed = ""
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        self.unread += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = self.closed or "aborted"


class FakeServer:
    """A connection that is open, unless `opens` is false, and what the client has written."""

    def __init__(
        self,
        *settings: tuple[int, int],
        opens: bool = True,
        times: Times | None = None,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        self.transport = FakeTransport()
        self.ended: list[Connection] = []
        loop = asyncio.get_running_loop()
        self.client = Connection(
            loop, times or Times(), self.ended.append, receive_buffer(), now_s or loop.time
        )
        self.client.connection_made(self.transport)
        self.opening = bytes(self.transport.written)
        self.transport.written.clear()
        if opens:
            self.send(frames.settings(*settings))
            assert self.taken() == [Frame(frames.SETTINGS, frames.ACK, 0, b"")]

    def send(self, *data: bytes) -> None:
        receive(self.client, b"".join(data))

    def taken(self) -> list[Frame]:
        """What the client has written since the last call."""
        written, found, at = bytes(self.transport.written), [], 0
        self.transport.written.clear()
        while at < len(written):
            word, flags, stream = frames.HEAD.unpack_from(written, at)
            at += frames.HEAD_BYTES + (word >> 8)
            found.append(Frame(word & 0xFF, flags, stream, written[at - (word >> 8) : at]))
        return found

    def farewell(self) -> int:
        """The error code of the GOAWAY frame that the client wrote last."""
        last = self.taken()[-1]
        assert last.kind == frames.GOAWAY
        return int.from_bytes(last.payload[4:8])


def headers(stream: int, block: bytes = OK, flags: int = END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, stream, block)


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(frames.DATA, flags, stream, payload)


def message(body: bytes) -> bytes:
    return PREFIX.pack(0, len(body)) + body


def trailers(stream: int, block: bytes = DONE) -> bytes:
    return headers(stream, block, END_HEADERS | END_STREAM)


def response(stream: int, body: bytes) -> bytes:
    return headers(stream) + data(stream, message(body)) + trailers(stream)
