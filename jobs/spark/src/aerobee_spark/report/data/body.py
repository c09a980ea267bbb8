"""Preview of a body: JSON indented, text as it is, anything else as hex. Pure."""

from __future__ import annotations

import json

from aerobee_wire.compression import decompress_start
from aerobee_wire.record import COMPRESSED
from aerobee_wire.status import MqError

MOST_TEXT = 2048
MOST_HEX_BYTES = 256


def preview(body: bytes | None, sys_flag: int, *, whole_size: int) -> tuple[str | None, str]:
    """(text, kind) of the first bytes of a body; kind is json, text, hex, empty or omitted.

    A compressed body is decompressed as far as its first bytes go. A cut text ends in "…".
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
    """The first bytes of a compressed body, and whether more follow; as it is stored when it cannot
    be decompressed."""
    try:
        start, is_whole = decompress_start(body, sys_flag, MOST_TEXT * 4)
    except MqError:
        return body, cut
    if not start:  # cut within its first block
        return body, cut
    return start, not is_whole


def _text(body: bytes, cut: bool) -> str | None:
    """None when it is not UTF-8, or holds control characters."""
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as error:
        if not cut or error.start < len(body) - 3:
            return None
        text = str(body[: error.start], "utf-8")  # the cut is within a character
    return text if all(sign.isprintable() or sign in "\t\r\n" for sign in text) else None


def _json(text: str) -> str | None:
    """None when it is not a JSON object or list: a bare number is text to a reader."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return None


def _shortened(text: str, cut: bool) -> str:
    return f"{text}…" if cut else text
