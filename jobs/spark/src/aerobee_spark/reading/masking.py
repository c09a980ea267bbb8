"""Mask the numbers and ids in the text of an exception, so that texts of one cause are equal.

This module does no I/O.
"""

from __future__ import annotations

import re

MASK = "#"
# An id in hex with or without hyphens, or a number. The longer forms come first.
_VALUE = re.compile(
    r"\b0x[0-9a-fA-F]+\b"
    r"|\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{16,}\b"
    r"|\d+(?:[.,:]\d+)*"
)
# The hash of a redacted text (`redaction.py`).
_HASH = re.compile(r"~[0-9a-f]{12}")


def masked(text: str) -> str:
    """Return a text with its numbers and ids replaced by "#". A redacted text stays as it is."""
    return text if _HASH.fullmatch(text) else _VALUE.sub(MASK, text)
