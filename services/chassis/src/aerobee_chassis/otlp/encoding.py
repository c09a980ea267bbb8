"""Encode the parts that OTLP's requests for metrics and traces share.

The few messages are written here by field number, so that no generated code and no package of
OpenTelemetry is loaded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

SCOPE = b"aerobee"

# Wire types.
VARINT, FIXED64, BYTES = 0, 1, 2


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def bytes_field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def text_field(number: int, content: str) -> bytes:
    return bytes_field(number, content.encode()) if content else b""


def fixed_field(number: int, value: int) -> bytes:
    return varint(number << 3 | FIXED64) + struct.pack("<q", value)


def double_field(number: int, value: float) -> bytes:
    return varint(number << 3 | FIXED64) + struct.pack("<d", value)


def attribute(number: int, name: str, value: str | int) -> bytes:
    """Encode a KeyValue {key = 1, value = 2} with an AnyValue {string_value = 1, int_value = 3}."""
    if isinstance(value, int):
        encoded = varint(3 << 3 | VARINT) + varint(value)
    else:
        encoded = text_field(1, value)
    return bytes_field(number, text_field(1, name) + bytes_field(2, encoded))


def export_request(resource: Mapping[str, str], items: Iterable[bytes]) -> bytes:
    """Encode the request of an Export call.

    Requests for metrics and for spans have the same form: resource = 1, scopes = 2 with scope = 1
    and items = 2.

    Args:
        resource: The attributes of the process that exports.
        items: The encoded metrics or spans.
    """
    attributes = b"".join(attribute(1, name, value) for name, value in resource.items())
    scope = bytes_field(1, bytes_field(1, SCOPE))
    scope += b"".join(bytes_field(2, item) for item in items)
    return bytes_field(1, bytes_field(1, attributes) + bytes_field(2, scope))


def rejection(answer: bytes) -> str:
    """Return the problem in an answer of Export, or "" if everything was accepted.

    The message has partial_success = 1 {rejected = 1, error_message = 2}.
    """
    partial = dict(_fields(answer)).get(1, b"")
    if not isinstance(partial, bytes):
        return ""
    fields = dict(_fields(partial))
    rejected, message = fields.get(1, 0), fields.get(2, b"")
    text = message.decode(errors="replace") if isinstance(message, bytes) else ""
    return f"{rejected!r} rejected: {text}" if rejected or text else ""


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of the varints and byte fields of a message."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while at < len(message):
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        return value

    while at < len(message):
        tag = number()
        if tag & 7 == VARINT:
            yield tag >> 3, number()
        elif tag & 7 == BYTES:
            size = number()
            yield tag >> 3, message[at : at + size]
            at += size
        else:  # no field of this message has another type
            return
