"""Formatting durations and sizes for people. Pure."""

from __future__ import annotations

_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def duration(ms: int | None) -> str:
    """At least two digits: "350 ms", "2.4 s", "17 min", "3.1 d"; "–" for None."""
    if ms is None:
        return "–"
    for size, unit in _STEPS:
        if ms >= size:
            return f"{_number(ms / size)} {unit}"
    return f"{ms} ms"


def size(count: int | None) -> str:
    """Bytes: "512 B", "1.5 KiB"."""
    if count is None:
        return "–"
    for step, unit in _SIZES:
        if count >= step:
            return f"{_number(count / step)} {unit}"
    return f"{count} B"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")
