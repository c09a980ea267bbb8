"""Make a preview of a message body: indented JSON, text, or hex for other bytes.

This module does no I/O.
"""

from __future__ import annotations

import json
import re

from aerobee_spark.report.formats import encodable
from aerobee_wire.compression import decompress_start
from aerobee_wire.record import COMPRESSED
from aerobee_wire.status import MqError

# Control characters that text does not contain. All other characters can be text: a no-break space,
# a zero-width joiner and a byte order mark are not printable for Python, but are frequent in text.
_BINARY = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
MOST_TEXT = 2048
MOST_HEX_BYTES = 256


def preview(body: bytes | None, sys_flag: int, *, whole_size: int) -> tuple[str | None, str]:
    """Return a text that shows the first bytes of a body, and the kind of the body.

    The kind is json, text, hex, empty or omitted. Only the first bytes of a compressed body are
    decompressed. A text that is cut ends in "…".

    Args:
        body: the first bytes of the body; None if bodies are excluded from the report.
        sys_flag: sys flag of the message, which names the compression.
        whole_size: size of the whole stored body, in bytes.
    """
    if body is None:
        return None, "omitted"
    cut = len(body) < whole_size
    if sys_flag & COMPRESSED:
        body, cut = _unpacked(body, sys_flag, cut)
    if not body:
        return "", "empty"
    text = _text(body, cut)
    if text is None:
        return _shortened(body[:MOST_HEX_BYTES].hex(" "), cut or len(body) > MOST_HEX_BYTES), "hex"
    if not cut and (pretty := _json(text)) is not None:
        return _shortened(pretty[:MOST_TEXT], len(pretty) > MOST_TEXT), "json"
    return _shortened(text[:MOST_TEXT], cut or len(text) > MOST_TEXT), "text"


def _unpacked(body: bytes, sys_flag: int, cut: bool) -> tuple[bytes, bool]:
    """Return (the first decompressed bytes of a body, whether more bytes follow).

    If the body cannot be decompressed, return its stored bytes and `cut`.
    """
    try:
        start, is_whole = decompress_start(body, sys_flag, MOST_TEXT * 4)
    except MqError:
        return body, cut
    if not start:  # cut within its first block
        return body, cut
    return start, not is_whole


def _text(body: bytes, cut: bool) -> str | None:
    """Decode a body as UTF-8. Return None if it is not UTF-8 or has control characters."""
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as error:
        if not cut or error.start < len(body) - 3:
            return None
        text = str(body[: error.start], "utf-8")  # the body is cut inside a character
    return None if _BINARY.search(text) else text


def _json(text: str) -> str | None:
    """Indent a JSON object or list.

    Return None for any other text, even a JSON number, and for JSON that is nested too deeply.
    """
    text = text.removeprefix("\ufeff")  # a byte order mark, which JSON does not permit
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        pretty: str = encodable(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return None
    return pretty


def _shortened(text: str, cut: bool) -> str:
    return f"{text}…" if cut else text
