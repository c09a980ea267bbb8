"""JSON objects in files, with a checksum: a flipped bit makes another valid file too easily.

Two lines: the object, and `{"crc32":"…"}` with the CRC-32 of the first line in eight hexadecimal
digits. A file without the second line is taken as it is: an older version wrote it, or a person.
White space at the end says nothing: editors add a newline.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

_OPENING = b'{"crc32":'


def encode(content: Mapping[str, Any]) -> bytes:
    line = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return line + b"\n" + _checksum(line)


def decode(data: bytes) -> dict[str, Any]:
    """Raises ValueError when that is not what was written."""
    data = data.rstrip()
    lines, newline, last = data.rpartition(b"\n")
    checked = newline and last.startswith(_OPENING)
    if checked and last != _checksum(lines):
        raise ValueError(
            "the checksum on its last line is not that of the lines before; whoever changes the "
            "file by hand removes that line"
        )
    content = json.loads(lines if checked else data)
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def _checksum(line: bytes) -> bytes:
    return b'%b"%08x"}' % (_OPENING, zlib.crc32(line))
