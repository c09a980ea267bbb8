"""Encode and decode JSON files with a checksum, because a flipped bit often leaves valid JSON.

A file has two lines: the object, and `{"crc32":"…"}` with the CRC-32 of the first line in eight
hexadecimal digits. A file without the second line is accepted, because an older version or a person
wrote it. White space at the end is ignored, because editors add a newline.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

_OPENING = b'{"crc32":'


def encode(content: Mapping[str, Any]) -> bytes:
    return encode_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")))


def encode_text(text: str) -> bytes:
    """Return the content of a file. `text` is the JSON object on one line."""
    line = text.encode()
    return line + b"\n" + _checksum(line)


def decode(data: bytes) -> dict[str, Any]:
    """Return the object in a file.

    Raises ValueError if the checksum does not match, or if the content is not a JSON object.
    """
    data = data.rstrip()
    lines, newline, last = data.rpartition(b"\n")
    checked = newline and last.startswith(_OPENING)
    if checked and last != _checksum(lines):
        raise ValueError(
            "the checksum on its last line does not match the lines before; remove that line after "
            "changing the file by hand"
        )
    content = json.loads(lines if checked else data)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def _checksum(line: bytes) -> bytes:
    return b'%b"%08x"}' % (_OPENING, zlib.crc32(line))
