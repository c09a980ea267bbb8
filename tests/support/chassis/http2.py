"""HTTP/2 by hand, as no library sends it: a request that stops in the middle, and many calls of
which each has begun before the first one is sent whole."""

from __future__ import annotations

import asyncio
import struct

from aerobee_chassis.healthcheck import (
    ACK,
    DATA,
    END_STREAM,
    FRAME_HEAD_BYTES,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    request,
)

_WINDOW_UPDATE = 8
_ANSWERS_WINDOW = 64 * 1024 * 1024  # beyond the default of 64 KiB for a connection
_LENGTH_BYTES = 5  # before each message of gRPC


def begun_request(path: str, data: bytes, of: int | None = None) -> bytes:
    """The bytes of a caller that connects and sends the beginning of a request: `data`, of a
    message of `of` bytes."""
    message = struct.pack(">BI", 0, len(data) if of is None else of) + data
    return request(path) + frame(DATA, 0, 1, message)


def opened(path: str, stream: int) -> bytes:
    """The headers of one more call, without its request, on a connection that has begun."""
    return request(path, stream).removeprefix(_BEGUN)


async def burst(address: str, path: str, message: bytes, calls: int) -> list[bytes | None]:
    """Make calls on one connection: first the headers of all, then the request of each.

    Return the answer of each call, or None for a call that ended without an answer.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    window = frame(_WINDOW_UPDATE, 0, 0, _ANSWERS_WINDOW.to_bytes(4, "big"))
    streams = range(1, 2 * calls, 2)
    headers = b"".join(opened(path, stream) for stream in streams)
    whole = struct.pack(">BI", 0, len(message)) + message
    requests = b"".join(frame(DATA, END_STREAM, stream, whole) for stream in streams)
    writer.write(_BEGUN + window + headers + requests)
    answers: dict[int, bytes] = dict.fromkeys(streams, b"")
    open_streams = set(streams)
    while open_streams:
        head = await reader.readexactly(FRAME_HEAD_BYTES)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        assert kind != GOAWAY, payload
        if kind in (SETTINGS, PING) and not flags & ACK:
            writer.write(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == DATA:
            answers[stream] += payload
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            open_streams.discard(stream)
    writer.close()
    await writer.wait_closed()
    return [answers[each][_LENGTH_BYTES:] if answers[each] else None for each in streams]


_BEGUN = PREFACE + frame(SETTINGS, 0, 0, b"")
