"""Text that clients keep and return unchanged: a payload and its CRC-32, in base64 for URLs.

The CRC-32 has 4 bytes, big-endian. The base64 has no padding. The checksum detects text that was
damaged or made up; it is not a signature.
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
    """Return the length of the longest text of `head_bytes` and this number of names."""
    return 4 * (head_bytes + names * (1 + MAX_NAME_BYTES) + _CHECKSUM.size) // 3 + 1


def to_text(payload: bytes) -> str:
    return _encoded(payload + _CHECKSUM.pack(zlib.crc32(payload))).decode("ascii")


def payload_in(text: str, *, least_bytes: int, most_characters: int) -> bytes:
    """Return the payload of a text that `to_text` wrote.

    Raises ValueError when the text is not exactly that. Its message continues "the text …".
    """
    if len(text) > most_characters:
        raise ValueError("is too long")
    try:
        written = text.encode("ascii")
        data = binascii.a2b_base64(written.translate(_FROM_URLS) + _PADDING[len(written) % 4])
    except ValueError:
        raise ValueError("is not base64") from None
    # Decoding skips foreign characters and spare bits. Accept only the exact text.
    if len(data) < least_bytes + _CHECKSUM.size or _encoded(data) != written:
        raise ValueError("is damaged")
    payload = data[: -_CHECKSUM.size]
    if int.from_bytes(data[-_CHECKSUM.size :], "big") != zlib.crc32(payload):
        raise ValueError("is damaged: its checksum does not match")
    return payload


def names_to_bytes(names: Sequence[bytes]) -> bytes:
    """Return each name after its length. Raises ValueError for a name of more than 255 bytes."""
    return b"".join(bytes((len(name),)) + name for name in names)


def names_in(payload: bytes, position: int, count: int) -> list[str]:
    """Return the names from `position` to the end. Raises ValueError unless there are `count`."""
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
