"""Times on the command line: ISO 8601, or an age. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from aerobee_cli.durations import parse_duration

_AGE = re.compile(r"[0-9.]+(ms|s|m|h|d)")


def parse_iso_ms(text: str) -> int:
    """Milliseconds since the epoch, 0 at least; UTC unless the text names a zone. Raises ValueError
    for what is no time."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0, round(at.timestamp() * 1000))


def parse_time_ms(text: str, now_ms: int) -> int:
    """An ISO time, or an age such as 24h, which is counted from `now_ms`. Raises ValueError with
    examples."""
    try:
        if _AGE.fullmatch(text):
            return max(0, now_ms - round(parse_duration(text).total_seconds() * 1000))
        return parse_iso_ms(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write it like 2025-06-01T00:00:00Z, or 24h for a day ago"
        ) from None
