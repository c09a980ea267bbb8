"""Show bytes of others as text: control and bidi characters as escapes, bodies within a bound."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from typing import Any

MAX_BODY_BYTES = 64 * 1024
MAX_PRETTY = 4 * MAX_BODY_BYTES  # characters: each level of JSON indents its lines further
HEX_COLUMNS = 16
FORMATS = ("text", "json", "hex")
# Categories of Unicode whose characters are invisible or change the order of others: control,
# format (with bidi marks), surrogates, private use, unassigned, line and paragraph separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str, *, keep: str = "") -> str:
    """Return a text with invisible characters as escapes such as \\u202e.

    Args:
        text: A text from a message or a client.
        keep: Characters to keep, such as line feeds.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character in keep or unicodedata.category(character) not in _HIDDEN
        else _escape(ord(character))
        for character in text
    )


def _escape(number: int) -> str:
    if number > 0xFFFF:
        return f"\\U{number:08x}"
    return f"\\u{number:04x}" if number > 0xFF else f"\\x{number:02x}"


@dataclass(frozen=True, slots=True)
class Body:
    """The first MAX_BODY_BYTES bytes of a body, as text.

    `format` is the format that is shown: "text" falls back to "hex" for bytes that are not UTF-8,
    and "json" to "text" for text that is not JSON. `problem` says why another format is shown.
    """

    text: str
    format: str
    size: int
    truncated: bool
    problem: str = ""


def body_of(body: bytes, wanted: str = "") -> Body:
    """Convert a body to text. `wanted` is one of FORMATS, or "" for the best one."""
    truncated = len(body) > MAX_BODY_BYTES
    head = body[:MAX_BODY_BYTES]
    problem = ""
    if wanted != "hex":
        try:
            text = head.decode("utf-8", "strict")
        except UnicodeDecodeError as error:
            # A character may be cut in two at the end of the first 64 KiB.
            text = head[: error.start].decode() if truncated and error.start > len(head) - 4 else ""
            if not text:
                problem = "the body is not text in UTF-8" if wanted else ""
                return Body(_hex(head), "hex", len(body), truncated, problem)
        if wanted != "text" and not truncated:
            try:
                pretty = _indented(json.loads(text))
            except (ValueError, RecursionError):
                problem = "the body is not JSON" if wanted == "json" else ""
            else:
                if pretty is None:
                    problem = "the body is nested too deeply to be shown as JSON"
                    return Body(printable(text, keep="\n\t"), "text", len(body), False, problem)
                return Body(printable(pretty, keep="\n"), "json", len(body), truncated)
        elif wanted == "json":
            problem = "the body is too long to be shown as JSON"
        return Body(printable(text, keep="\n\t"), "text", len(body), truncated, problem)
    return Body(_hex(head), "hex", len(body), truncated)


def _indented(value: Any) -> str | None:
    """Return a value as indented JSON, or None if that is longer than MAX_PRETTY."""
    parts, length = [], 0
    for each in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        length += len(each)
        if length > MAX_PRETTY:
            return None
        parts.append(each)
    return "".join(parts)


def _hex(body: bytes) -> str:
    lines = []
    for start in range(0, len(body), HEX_COLUMNS):
        part = body[start : start + HEX_COLUMNS]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{HEX_COLUMNS * 3}} {text}")
    return "\n".join(lines)
