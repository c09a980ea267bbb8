"""Draw the curves of `make bench ARGS='--only growth'` as pictures for docs/benchmarks.md.

make bench ARGS='--only growth' && .venv/bin/python docs/curves.py

A curve is the rows whose names differ only in a number at the end. It becomes
docs/images/NAME.svg. Curves that build/bench.json does not have stay as they are.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "build" / "bench.json"
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 32, 36
# curve → what its x axis counts
AXES = {
    "growth_queues": "queues",
    "growth_clients": "clients",
    "growth_stored_append": "messages in the store",
    "growth_stored_read": "messages in the store",
    "growth_stored_start": "messages in the store",
    "growth_delayed_send": "delayed messages",
    "growth_delayed_start": "delayed messages",
}


class Curve(NamedTuple):
    """Costs by what grows, as ratios to the baseline of the same run, and the unit of the costs."""

    points: Mapping[int, float]
    unit: str


def curves(report: Mapping[str, Any]) -> Iterator[tuple[str, Curve]]:
    """Yield the known curves of a report."""
    for name in AXES:
        rows = [
            (int(found[1]), result)
            for result in report["results"]
            if (found := re.fullmatch(rf"{name}_(\d+)", result["name"]))
        ]
        if rows:
            points = {number: float(result["ratio"]) for number, result in sorted(rows)}
            yield name, Curve(points, rows[0][1]["unit"])


def drawn(name: str, curve: Curve) -> str:
    """Return a picture: equal steps from point to point, and ratios from 0."""
    numbers, values = list(curve.points), list(curve.points.values())
    top = nice(max(2.0, *values))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(numbers) - 1)
    places = [
        (LEFT + at * step, HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM))
        for at, value in enumerate(values)
    ]
    title = f"{name.removeprefix('growth_').replace('_', ', ')}: {curve.unit} / baseline"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
            text(LEFT, 18, title, "start"),
            *grid(top),
            f'<polyline fill="none" stroke="#1f77b4" stroke-width="2" points="{path(places)}"/>',
            *marks(places, numbers, values),
            text(WIDTH / 2, HEIGHT - 4, AXES[name]),
            "</svg>\n",
        )
    )


def nice(value: float) -> float:
    """Return a round number of at least this value, for the top of an axis."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 3, 4, 5, 6, 8, 10) if power * factor >= value)


def grid(top: float) -> Iterator[str]:
    for part in range(5):
        y = HEIGHT - BOTTOM - part / 4 * (HEIGHT - TOP - BOTTOM)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        yield text(LEFT - 6, y + 4, f"{top * part / 4:g}", "end")


def marks(
    places: Sequence[tuple[float, float]], numbers: Sequence[int], values: Sequence[float]
) -> Iterator[str]:
    for (x, y), number, value in zip(places, numbers, values, strict=True):
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f77b4"/>'
        anchor = "start" if number == numbers[0] else "end" if number == numbers[-1] else "middle"
        yield text(x, y - 8, f"{value:.3g}", anchor)
        yield text(x, HEIGHT - BOTTOM + 14, f"{number:,}", anchor)


def path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def text(x: float, y: float, shown: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown)}</text>'


def main() -> int:
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    written = []
    for name, curve in curves(report):
        picture = IMAGES / f"{name}.svg"
        picture.write_text(drawn(name, curve), encoding="utf-8")
        written.append(str(picture.relative_to(ROOT)))
    if not written:
        print("no curves in build/bench.json: run make bench ARGS='--only growth'", file=sys.stderr)
        return 1
    print(f"wrote {', '.join(written)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
