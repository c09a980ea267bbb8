"""Parse and format times and durations of the command line. Does no I/O.

A time is in ISO 8601, in milliseconds since the epoch, or an age. A duration has a unit: "200ms",
"5s", "2m", "1h", "1d".
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_AGE = re.compile(r"[0-9.]+(ms|s|m|h|d)")
# Milliseconds since the epoch have 13 digits from 2001-09-09 to 2286-11-20; mqadmin uses them.
EPOCH_MS_DIGITS = 13
# A date without hyphens. Python also accepts a digit between date and time, so that it would read a
# number of 11 digits, such as an offset, as an hour of a year between 1000 and 9999.
ISO_DATE_DIGITS = 8


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
    """Format a duration in its largest whole unit: 7200000 → "2h", 1500 → "1500ms"."""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(duration_ms, _MILLISECONDS[unit])
        if count and not rest:
            return f"{count}{unit}"
    return f"{duration_ms}ms"


class Moment(NamedTuple):
    """A time in milliseconds since the epoch, or an age in milliseconds."""

    ms: int
    is_age: bool = False

    def at(self, now_ms: int) -> int:
        """Return the time in milliseconds since the epoch, at least 0. Ages count from `now_ms`."""
        return max(0, now_ms - self.ms if self.is_age else self.ms)


def is_epoch_ms(text: str) -> bool:
    """Return whether a text is a time in milliseconds since the epoch, which has 13 digits."""
    return text.isascii() and text.isdigit() and len(text) == EPOCH_MS_DIGITS


def parse_time_ms(text: str) -> int:
    """Parse an ISO 8601 time, or 13 digits, to milliseconds since the epoch, at least 0.

    A time without a zone is in UTC. Raises ValueError if the text is invalid.
    """
    if is_epoch_ms(text):
        return int(text)
    if text.isdigit() and len(text) != ISO_DATE_DIGITS:
        raise ValueError(f"{text} has neither {EPOCH_MS_DIGITS} nor {ISO_DATE_DIGITS} digits")
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0, round(at.timestamp() * 1000))


def parse_moment(text: str) -> Moment:
    """Parse a time, or an age such as 24h. Raises ValueError with examples."""
    try:
        if _AGE.fullmatch(text):
            return Moment(round(parse_duration(text).total_seconds() * 1000), is_age=True)
        return Moment(parse_time_ms(text))
    except ValueError:
        raise ValueError(
            f"invalid time {text!r}: write it like 2025-06-01T00:00:00Z, 1748736000000 "
            "(milliseconds since 1970), or 24h for a day ago"
        ) from None
