"""The frames of HTTP/2 (RFC 9113), as numbers and bytes. Pure: no connection.

A frame is a head of 9 bytes and a payload:

    length  3 bytes, of the payload
    type    1 byte
    flags   1 byte
    stream  4 bytes; 0 is the connection; the highest bit is ignored
"""

from __future__ import annotations

from struct import Struct

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = Struct(">IBI")  # the length, shifted by 8 bits, with the type; flags; stream
HEAD_BYTES = 9
assert HEAD.size == HEAD_BYTES
MAX_STREAM = 2**31 - 1
MAX_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_BYTES = 16_384
MAX_FRAME_BYTES = 2**24 - 1

# settings
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6
SETTING = Struct(">HI")

NUMBER = Struct(">I")

# error codes
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = 5, 6, 7, 8, 9
ENHANCE_YOUR_CALM, INADEQUATE_SECURITY = 11, 12


class ProtocolError(Exception):
    """The peer violated HTTP/2. `code` is the error code for the whole connection."""

    def __init__(self, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def headers(stream: int, block: bytes, frame_bytes: int, flags: int = 0) -> bytes:
    """Return the frames of a header block; none is larger than `frame_bytes`.

    `flags` are those of the first frame, without END_HEADERS.
    """
    if len(block) <= frame_bytes:
        return HEAD.pack(len(block) << 8 | HEADERS, flags | END_HEADERS, stream) + block
    pieces = [block[at : at + frame_bytes] for at in range(0, len(block), frame_bytes)]
    kinds = [HEADERS] + [CONTINUATION] * (len(pieces) - 1)
    every = [flags] + [0] * (len(pieces) - 2) + [END_HEADERS]
    return b"".join(map(frame, kinds, every, [stream] * len(pieces), pieces))


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(more))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def goaway(last_stream: int, code: int, reason: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, NUMBER.pack(last_stream) + NUMBER.pack(code) + reason)


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*pair) for pair in pairs))


def read_settings(payload: bytes, *, by_server: bool = True) -> dict[int, int]:
    """Return the values of a SETTINGS frame by setting. Raises ProtocolError."""
    if len(payload) % SETTING.size:
        raise ProtocolError("a SETTINGS frame has a wrong size", FRAME_SIZE_ERROR)
    values = {}
    for number, value in SETTING.iter_unpack(payload):
        if number == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ProtocolError("the initial window is too large", FLOW_CONTROL_ERROR)
        if number == MAX_FRAME_SIZE and not DEFAULT_FRAME_BYTES <= value <= MAX_FRAME_BYTES:
            raise ProtocolError("the maximum frame size is invalid")
        if number == ENABLE_PUSH and value > (not by_server):
            raise ProtocolError("a server cannot enable pushes, and a client only by 1")
        values[number] = value
    return values


def number_in(payload: bytes) -> int:
    """Return the number that is the payload of a frame. Raises ProtocolError."""
    if len(payload) != NUMBER.size:
        raise ProtocolError("a frame has a wrong size", FRAME_SIZE_ERROR)
    value: int = NUMBER.unpack(payload)[0]
    return value


def unpadded(kind: int, flags: int, payload: bytes) -> bytes:
    """Return the payload of a DATA or HEADERS frame without padding and priority.

    Raises ProtocolError.
    """
    padding = start = 0
    if flags & PADDED:
        if not payload:
            raise ProtocolError("a frame has a wrong size", FRAME_SIZE_ERROR)
        padding, start = payload[0], 1
    if kind == HEADERS and flags & HAS_PRIORITY:
        start += 5
    if start + padding > len(payload):
        raise ProtocolError("the padding of a frame is too long")
    return payload[start : len(payload) - padding]
