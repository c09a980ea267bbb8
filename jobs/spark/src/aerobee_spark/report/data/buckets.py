"""Choose the width of a bucket of the timeline.

This module does no I/O.
"""

from __future__ import annotations

import re

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
WIDTHS_MS = (
    100,
    200,
    500,
    *(n * SECOND for n in (1, 2, 5, 10, 30)),
    *(n * MINUTE for n in (1, 2, 5, 10, 30)),
    *(n * HOUR for n in (1, 3, 6, 12)),
    *(n * DAY for n in (1, 2, 7, 30, 90, 365)),
)
MOST_COLUMNS = 60
# The limit of buckets if the user chose the width.
MOST_ASKED_COLUMNS = 1000
_UNITS = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_WIDTH = re.compile(r"(\d+)([smhd])")


def parse_width(text: str) -> int:
    """Parse a duration such as "30s", "5m", "1h" or "1d" into milliseconds.

    Raise ValueError for any other text.
    """
    found = _WIDTH.fullmatch(text)
    if not found or not int(found.group(1)):
        raise ValueError(f"invalid width {text!r}: write 30s, 5m, 1h or 1d")
    return int(found.group(1)) * _UNITS[found.group(2)]


def choose(span: tuple[int, int] | None, asked_ms: int | None = None) -> int:
    """Choose the width of a bucket of the timeline, in milliseconds.

    Return `asked_ms` if it makes at most MOST_ASKED_COLUMNS buckets. Otherwise, return the smallest
    width that makes at most MOST_COLUMNS buckets.

    Args:
        span: first and last store time in milliseconds since the epoch; None without messages.
        asked_ms: the width that the user chose, in milliseconds; None if the user chose none.
    """
    first, last = span or (0, 0)
    if asked_ms and _columns(first, last, asked_ms) <= MOST_ASKED_COLUMNS:
        return asked_ms
    fitting = (width for width in WIDTHS_MS if _columns(first, last, width) <= MOST_COLUMNS)
    return next(fitting, (last - first) // (MOST_COLUMNS - 1) + 1)


def _columns(first: int, last: int, width: int) -> int:
    return last // width - first // width + 1
