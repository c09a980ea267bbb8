"""Encode a payload with its CRC-32 as text that clients keep and return unchanged.

The text is base64 for URLs without padding. The CRC-32 has 4 bytes, big-endian. The checksum
detects damaged or invented text; it is not a signature.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from collections.abc import Sequence
from typing import Final

MAX_NAME_BYTES: Final = 255
_FOR_URLS = bytes.maketrans(b"+/", b"-_")
# Characters of plain base64 become "*", which is invalid in base64.
_FROM_URLS = bytes.maketrans(b"-_+/=", b"+/***")
_PADDING = (b"", b"===", b"==", b"=")  # by the length modulo 4; 1 is impossible
_CHECKSUM = struct.Struct(">I")


def max_characters(head_bytes: int, names: int) -> int:
    """Return the length of the longest text of `head_bytes` bytes and `names` names."""
    return 4 * (head_bytes + names * (1 + MAX_NAME_BYTES) + _CHECKSUM.size) // 3 + 1


def to_text(payload: bytes) -> str:
    return _encoded(payload + _CHECKSUM.pack(zlib.crc32(payload))).decode("ascii")


def payload_in(text: str, *, least_bytes: int, most_characters: int) -> bytes:
    """Return the payload of a text that `to_text` wrote.

    Raises ValueError if `to_text` did not write the text. The error message continues the words
    "the text …".
    """
    if len(text) > most_characters:
        raise ValueError("is too long")
    try:
        written = text.encode("ascii")
        data = binascii.a2b_base64(written.translate(_FROM_URLS) + _PADDING[len(written) % 4])
    except ValueError:
        raise ValueError("is not base64") from None
    # Decoding ignores invalid characters and unused bits. So accept only the exact text.
    if len(data) < least_bytes + _CHECKSUM.size or _encoded(data) != written:
        raise ValueError("is damaged")
    payload = data[: -_CHECKSUM.size]
    if int.from_bytes(data[-_CHECKSUM.size :], "big") != zlib.crc32(payload):
        raise ValueError("is damaged: its checksum does not match")
    return payload


def names_to_bytes(names: Sequence[bytes]) -> bytes:
    """Return the names, each with its length before it. Raises ValueError above 255 bytes."""
    return b"".join(bytes((len(name),)) + name for name in names)


def names_in(payload: bytes, position: int, count: int) -> list[str]:
    """Return the names in `payload` from `position` to the end.

    Raises ValueError if there are not exactly `count` names.
    """
    names = []
    try:
        for _ in range(count):
            start, position = position + 1, position + 1 + payload[position]
            names.append(payload[start:position].decode())
    except (IndexError, UnicodeDecodeError):
        raise ValueError("has broken names") from None
    if position != len(payload):
        raise ValueError("has broken names")
    return names


def _encoded(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False).translate(_FOR_URLS, b"=")
