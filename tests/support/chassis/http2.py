"""A gRPC client that stops in the middle of a request: HTTP/2 by hand, as no library sends it."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END, END_HEADERS = 1, 4


def frame(kind: int, payload: bytes, *, stream: int = 0, flags: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def begun_request(path: str, data: bytes, of: int | None = None) -> bytes:
    """The bytes of a caller that connects and sends the beginning of a request: `data`, of a
    message of `of` bytes."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "test",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(_literal(name) + _text(value) for name, value in headers.items())
    message = struct.pack(">BI", 0, len(data) if of is None else of) + data
    return (
        PREFACE
        + frame(SETTINGS, b"")
        + frame(HEADERS, block, stream=1, flags=END_HEADERS)
        + frame(DATA, message, stream=1)
    )


def _literal(name: str) -> bytes:
    """A header's name as HPACK has it: literal, not indexed, without Huffman."""
    return b"\0" + _text(name)


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()
