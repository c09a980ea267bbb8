"""Puts the figures of build/bench.json into docs/benchmarks.md, between its two marks.

make bench && .venv/bin/python docs/figures.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "build" / "bench.json"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
HEAD = "| what | unit | ours | baseline | ratio | how |\n|---|---|---:|---:|---:|---|\n"


def number(value: float) -> str:
    """Three digits that count, thousands separated."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row(result: dict[str, Any]) -> str:
    """One line of the table. Raises KeyError for a result of another shape."""
    figures = " | ".join(number(result[key]) for key in ("ours", "baseline", "ratio"))
    return f"| `{result['name']}` | {result['unit']} | {figures} | {result.get('note', '')} |\n"


def section(report: dict[str, Any]) -> str:
    machine = report["machine"]
    where = f"CPython {machine['python']}, {machine['cpus']} cores, Linux {machine['kernel']}."
    return f"{HEAD}{''.join(map(row, report['results']))}\n{where}\n"


def rewritten(page: str, report: dict[str, Any]) -> str:
    """The page with these figures. Raises SystemExit when it has no place for them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{section(report)}\n{END}{after}"


def main() -> int:
    try:
        report = json.loads(FIGURES.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print(f"there is no {FIGURES.relative_to(ROOT)} yet: run make bench", file=sys.stderr)
        return 1
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(rewritten(page, report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
