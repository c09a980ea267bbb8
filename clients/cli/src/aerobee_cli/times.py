"""Times on the command line: ISO 8601, milliseconds since the epoch, or an age. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from aerobee_cli.durations import parse_duration

_AGE = re.compile(r"[0-9.]+(ms|s|m|h|d)")
# Milliseconds since the epoch have 13 digits from 2001-09-09 to 2286-11-20; mqadmin uses them.
EPOCH_MS_DIGITS = 13


class Moment(NamedTuple):
    """A time in milliseconds since the epoch, or an age in milliseconds."""

    ms: int
    is_age: bool = False

    def at(self, now_ms: int) -> int:
        """Return milliseconds since the epoch, at least 0. An age counts back from `now_ms`."""
        return max(0, now_ms - self.ms if self.is_age else self.ms)


def is_epoch_ms(text: str) -> bool:
    """Return whether a text has 13 digits: milliseconds since the epoch."""
    return text.isascii() and text.isdigit() and len(text) == EPOCH_MS_DIGITS


def parse_time_ms(text: str) -> int:
    """Parse an ISO 8601 time, or 13 digits, to milliseconds since the epoch, at least 0.

    A time without a zone is in UTC. Raises ValueError.
    """
    if is_epoch_ms(text):
        return int(text)
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
