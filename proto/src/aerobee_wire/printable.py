"""Escape the characters of a text that change a terminal, or the order in which a text is read.

Names, message bodies and errors contain text that strangers chose. This module does no I/O.
"""

from __future__ import annotations

import json

# Marks and overrides of the direction, and separators of lines and paragraphs.
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
# Line feeds and tabs are kept: texts of several lines have them.
_CONTROLS = [code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"]
_ESCAPES = {
    **{code: f"\\x{code:02x}" for code in _CONTROLS},
    **{code: f"\\u{code:04x}" for code in _DIRECTIONS},
}
# JSON has escaped control characters below 32 already.
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _ESCAPES if code >= 127}


def printable(text: str) -> str:
    """Return the text with escapes for a terminal."""
    return text.translate(_ESCAPES)


def printable_json(value: object, default: object = None) -> str:
    """Return JSON on one line that a terminal shows as it is. Other characters are not escaped.

    `default` is that of `json.dumps`.
    """
    text = json.dumps(value, ensure_ascii=False, default=default)  # type: ignore[arg-type]
    return text.translate(_JSON_ESCAPES)
