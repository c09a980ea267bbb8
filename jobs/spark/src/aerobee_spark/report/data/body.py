"""Preview of a body: JSON indented, text as it is, anything else as hex. Pure."""

from __future__ import annotations

import json
import zlib

from aerobee_wire import record

COMPRESSION_MASK = 0x700
ZLIB = (0x000, 0x300)  # without a kind, as old clients, and with it
MOST_TEXT = 2048
MOST_HEX_BYTES = 256


def preview(body: bytes | None, sys_flag: int, *, whole_size: int) -> tuple[str | None, str]:
    """(text, kind) of the first bytes of a body; kind is json, text, hex, empty or omitted.

    A zlib-compressed body is decompressed as far as its first bytes go. A cut text ends in "…".
    """
    if body is None:
        return None, "omitted"
    cut = len(body) < whole_size
    if sys_flag & record.COMPRESSED and sys_flag & COMPRESSION_MASK in ZLIB:
        body, cut = _unpacked(body, cut)
    if not body:
        return "", "empty"
    text = _text(body, cut)
    if text is None:
        return _shortened(body[:MOST_HEX_BYTES].hex(" "), cut or len(body) > MOST_HEX_BYTES), "hex"
    if not cut and (pretty := _json(text)) is not None:
        return _shortened(pretty[:MOST_TEXT], len(pretty) > MOST_TEXT), "json"
    return _shortened(text[:MOST_TEXT], cut or len(text) > MOST_TEXT), "text"


def _unpacked(body: bytes, cut: bool) -> tuple[bytes, bool]:
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(body, MOST_TEXT * 4)
    except zlib.error:
        return body, cut
    return plain, not unpacker.eof


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
