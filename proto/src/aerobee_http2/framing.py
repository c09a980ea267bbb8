"""Split the bytes of a connection into frames. This is the same for client and server.

DATA is passed on as it arrives, so that no frame of it is in memory as a whole. All other frames
are small. A header block is put together from its frames.

All connections of a channel or a listener read into one buffer. The bytes in it are used before
the next read, and what is kept of them is copied.
"""

from __future__ import annotations

import asyncio

from aerobee_http2 import frames
from aerobee_http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    MAX_STREAM,
    PADDED,
    ProtocolError,
)

# A frame of another kind than DATA is in memory as a whole. This is the default of HTTP/2.
CONTROL_FRAME_BYTES = frames.DEFAULT_FRAME_BYTES
MAX_BLOCK_BYTES = 64 * 1024
MAX_CONTINUATIONS = 64

_OF_CALLS = (DATA, HEADERS, frames.RST_STREAM)

NOT_HTTP2 = "it does not use HTTP/2"
BUFFER_BYTES = 256 * 1024  # of one read


def receive_buffer() -> memoryview:
    """Return a buffer for the connections of one event loop."""
    return memoryview(bytearray(BUFFER_BYTES))


class FrameReader(asyncio.BufferedProtocol):
    """Read the frames of a connection. A subclass handles them.

    Args:
        data_frame_bytes: The largest frame that the peer may send.
        buffer: The buffer for reads.

    Attributes:
        is_closed: Whether the connection has ended; what arrives later is not read.
    """

    def __init__(self, data_frame_bytes: int, buffer: memoryview) -> None:
        self.is_closed = False
        self._data_frame_bytes = data_frame_bytes
        self._buffer = buffer
        self._rest = bytearray()  # an incomplete frame
        self._needed = 0  # bytes of it with which reading can continue
        self._data_left = 0  # bytes of the present DATA frame that have not arrived
        self._data_stream = self._data_flags = 0
        self._block: bytearray | None = None  # of headers that are continued
        self._block_stream = self._block_flags = self._continuations = 0
        self._has_settings = False  # the first frame of the peer has arrived

    # ---- for subclasses ----

    def _check_stream(self, kind: int, stream: int) -> None:
        """Check the stream of DATA, HEADERS or RST_STREAM. Raises ProtocolError."""
        raise NotImplementedError

    def _receive_data(
        self, stream: int, flags: int, data: memoryview, size: int, is_whole: bool
    ) -> None:
        """Take a part of a DATA frame. `size` is that of data and padding.

        `data` is valid only until this returns.
        """
        raise NotImplementedError

    def _receive_headers(self, stream: int, flags: int, block: bytes) -> None:
        """Take a whole header block."""
        raise NotImplementedError

    def _receive_control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        """Take a frame of another kind."""
        raise NotImplementedError

    # ---- asyncio.BufferedProtocol ----

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer

    # ---- reading ----

    def _receive(self, data: memoryview) -> None:
        """Read bytes of the peer. Raises ProtocolError."""
        if self._data_left:
            taken = data[: self._data_left]
            self._data_left -= len(taken)
            is_whole = self._data_left == 0
            self._receive_data(self._data_stream, self._data_flags, taken, len(taken), is_whole)
            if len(taken) == len(data):
                return
            data = data[len(taken) :]
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = memoryview(bytes(self._rest))
            self._rest.clear()
        at, end = 0, len(data)
        while end - at >= HEAD_BYTES:
            if self.is_closed:
                return
            word, flags, stream = HEAD.unpack_from(data, at)
            size, kind, stream = word >> 8, word & 0xFF, stream & MAX_STREAM
            start = at + HEAD_BYTES
            self._check_head(kind, flags, stream, size)
            at = start + size
            if kind == DATA and not flags & PADDED:
                if at > end:
                    self._data_left = at - end
                    self._data_stream, self._data_flags = stream, flags
                    self._receive_data(stream, flags, data[start:], end - start, is_whole=False)
                    return
                self._receive_data(stream, flags, data[start:at], size, is_whole=True)
            elif at > end:
                self._rest += data[start - HEAD_BYTES :]
                self._needed = HEAD_BYTES + size
                return
            else:
                self._receive_frame(kind, flags, stream, data[start:at].tobytes())
        if at < end:
            self._rest += data[at:]
            self._needed = HEAD_BYTES

    def _check_head(self, kind: int, flags: int, stream: int, size: int) -> None:
        if not self._has_settings:
            if kind != frames.SETTINGS or flags & ACK or size > CONTROL_FRAME_BYTES:
                raise ProtocolError(NOT_HTTP2)
            self._has_settings = True
        if size > CONTROL_FRAME_BYTES and (
            size > self._data_frame_bytes or kind not in (DATA, HEADERS)
        ):
            raise ProtocolError("a frame is too large", frames.FRAME_SIZE_ERROR)
        if self._block is not None and (kind != CONTINUATION or stream != self._block_stream):
            raise ProtocolError("the headers of a call are interrupted")
        if kind in _OF_CALLS:
            self._check_stream(kind, stream)
            if kind == HEADERS and size > MAX_BLOCK_BYTES:
                raise ProtocolError("the headers of a call are too large", frames.ENHANCE_YOUR_CALM)

    def _receive_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            if flags & (PADDED | frames.HAS_PRIORITY):
                payload = frames.unpadded(kind, flags, payload)
            if flags & END_HEADERS:
                self._receive_headers(stream, flags, payload)
            else:
                self._block = bytearray(payload)
                self._block_stream, self._block_flags, self._continuations = stream, flags, 0
        elif kind == DATA:  # with padding, which counts in the windows
            bare = memoryview(frames.unpadded(kind, flags, payload))
            self._receive_data(stream, flags, bare, len(payload), is_whole=True)
        elif kind == CONTINUATION:
            self._receive_continuation(flags, payload)
        else:
            self._receive_control(kind, flags, stream, payload)

    def _receive_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise ProtocolError("there are no headers to continue")
        self._block += payload
        self._continuations += 1
        if len(self._block) > MAX_BLOCK_BYTES or self._continuations > MAX_CONTINUATIONS:
            raise ProtocolError("the headers of a call are too large", frames.ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), None
            self._receive_headers(self._block_stream, self._block_flags, block)

    def _forget(self) -> None:
        """Drop what was not read."""
        self._rest.clear()
        self._block = None
        self._data_left = 0
