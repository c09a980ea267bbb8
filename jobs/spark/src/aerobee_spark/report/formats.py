"""Format times for summary.json, durations and sizes for people, and escape texts.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from typing import Any

_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def iso(ms: int | None) -> str | None:
    """Format milliseconds since the epoch as ISO 8601 in UTC, such as "2026-01-31T08:00:00.000Z".

    Return None for None.
    """
    if ms is None:
        return None
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(value: str | None, zone: tzinfo | None = None) -> str:
    """Convert a time of the summary (ISO 8601) to the form "2026-01-31 09:00:00 CET".

    `zone` is the time zone; None is that of this machine, which the variable TZ sets.
    """
    if value is None:
        return "–"
    return datetime.fromisoformat(value).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z")


def duration(ms: int | None) -> str:
    """Format milliseconds for people: "350 ms", "2.4 s", "17 min", "3.1 d"; "–" for None."""
    return _in_units(ms, _STEPS, "ms")


def size(count: int | None) -> str:
    """Format a number of bytes for people: "512 B", "1.5 KiB"; "–" for None."""
    return _in_units(count, _SIZES, "B")


def _in_units(value: int | None, units: Iterable[tuple[int, str]], smallest: str) -> str:
    if value is None:
        return "–"
    for size, unit in units:
        if value >= size:
            return f"{_number(value / size)} {unit}"
    return f"{value} {smallest}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")


def encodable(value: Any) -> Any:
    r"""Return a value with each half of a surrogate pair escaped, such as \ud83d.

    Args:
        value: a text, or lists and mappings of texts at any depth, also in the names of mappings.
            Other values are unchanged.
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(name): encodable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [encodable(each) for each in value]
    return value
