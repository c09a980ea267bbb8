"""Text that clients hold and give back unchanged: bytes with a checksum, in base64 for URLs.

    n payload
    4 checksum   CRC-32 of the payload

Without padding, big-endian. The checksum tells text that was damaged or made up; it is no
signature.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from collections.abc import Sequence
from typing import Final

MAX_NAME_BYTES: Final = 255
_FOR_URLS = bytes.maketrans(b"+/", b"-_")
# What base64 for URLs does not have becomes what base64 does not have either.
_FROM_URLS = bytes.maketrans(b"-_+/=", b"+/***")
_PADDING = (b"", b"===", b"==", b"=")  # by the characters of the last group of four; one is too few
_CHECKSUM = struct.Struct(">I")


def max_characters(head_bytes: int, names: int) -> int:
    """Of a text whose payload is a head and so many names."""
    return 4 * (head_bytes + names * (1 + MAX_NAME_BYTES) + _CHECKSUM.size) // 3 + 1


def to_text(payload: bytes) -> str:
    return _encoded(payload + _CHECKSUM.pack(zlib.crc32(payload))).decode("ascii")


def payload_in(text: str, *, least_bytes: int, most_characters: int) -> bytes:
    """The payload, of `least_bytes` or more, once the checksum holds and the text is the one way to
    write it. Raises ValueError: what is wrong with the text."""
    if len(text) > most_characters:
        raise ValueError("is too long")
    try:
        written = text.encode("ascii")
        data = binascii.a2b_base64(written.translate(_FROM_URLS) + _PADDING[len(written) % 4])
    except ValueError:
        raise ValueError("is not base64") from None
    # Decoding skips foreign characters and spare bits: only the exact text may pass.
    if len(data) < least_bytes + _CHECKSUM.size or _encoded(data) != written:
        raise ValueError("is damaged")
    payload = data[: -_CHECKSUM.size]
    if int.from_bytes(data[-_CHECKSUM.size :], "big") != zlib.crc32(payload):
        raise ValueError("is damaged: its checksum does not hold")
    return payload


def names_to_bytes(names: Sequence[bytes]) -> bytes:
    """Each with its length before it. Raises ValueError for one of more than MAX_NAME_BYTES."""
    return b"".join(bytes((len(name),)) + name for name in names)


def names_in(payload: bytes, position: int, count: int) -> list[str]:
    """The names from `position` to the end. Raises ValueError when it is not so many."""
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
