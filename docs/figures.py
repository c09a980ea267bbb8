"""Write the figures of build/bench.json into docs/benchmarks.md, between its two marks.

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
    """Format with three significant digits and separated thousands."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row(result: dict[str, Any]) -> str:
    """Return one row of the table. Raise KeyError if a field of the result is missing."""
    figures = " | ".join(number(result[key]) for key in ("ours", "baseline", "ratio"))
    return f"| `{result['name']}` | {result['unit']} | {figures} | {result.get('note', '')} |\n"


def section(report: dict[str, Any]) -> str:
    machine = report["machine"]
    where = f"CPython {machine['python']}, {machine['cpus']} cores, Linux {machine['kernel']}."
    return f"{HEAD}{''.join(map(row, report['results']))}\n{where}\n"


def rewritten(page: str, report: dict[str, Any]) -> str:
    """Return the page with these figures. Raise SystemExit if a mark is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} lacks the marks: add the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{section(report)}\n{END}{after}"


def main() -> int:
    try:
        report = json.loads(FIGURES.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print(f"{FIGURES.relative_to(ROOT)} is missing: run make bench", file=sys.stderr)
        return 1
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(rewritten(page, report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
