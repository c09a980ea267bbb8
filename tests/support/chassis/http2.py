"""A gRPC client that stops in the middle of a request: HTTP/2 by hand, as no library sends it."""

from __future__ import annotations

import struct

from aerobee_chassis.healthcheck import DATA, frame, request


def begun_request(path: str, data: bytes, of: int | None = None) -> bytes:
    """The bytes of a caller that connects and sends the beginning of a request: `data`, of a
    message of `of` bytes."""
    message = struct.pack(">BI", 0, len(data) if of is None else of) + data
    return request(path) + frame(DATA, 0, 1, message)
