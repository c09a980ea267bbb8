"""Parse and format durations: "200ms", "5s", "2m", "1h", "1d". Pure."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(text: str) -> timedelta:
    """Parse a number with a unit. Raises ValueError with examples."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(
            f"invalid duration {text.strip()!r}: write it like 200ms, 5s, 2m, 1h or 1d"
        )
    # Decimal: as a float 1.001 s is a little less than 1001 ms.
    milliseconds = Decimal(found[1]) * _MILLISECONDS[found[2]]
    if milliseconds != int(milliseconds):
        raise ValueError(f"{text.strip()!r} is finer than a millisecond")
    try:
        return timedelta(milliseconds=int(milliseconds))
    except OverflowError:
        raise ValueError(f"{text.strip()!r} is too long") from None


def format_ms(duration_ms: int) -> str:
    """Format in the largest unit without a remainder: 7200000 → "2h", 1500 → "1500ms"."""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(duration_ms, _MILLISECONDS[unit])
        if count and not rest:
            return f"{count}{unit}"
    return f"{duration_ms}ms"
