"""Write measured figures into pages, between their two marks.

make bench && .venv/bin/python docs/figures.py               # into docs/benchmarks.md
make bench-peers && .venv/bin/python docs/figures.py peers   # into docs/compare.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
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


def rewritten(page: str, section: str) -> str:
    """Return the page with this section. Raise SystemExit if a mark is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page lacks the marks: add the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{section}\n{END}{after}"


# Name -> the figures, the page, and its section.
PAGES: dict[str, tuple[str, str, Callable[[dict[str, Any]], str]]] = {
    "bench": ("build/bench.json", "docs/benchmarks.md", section),
    "peers": ("build/peers.json", "docs/compare.md", lambda report: str(report["tables"])),
}


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "bench"
    if name not in PAGES:
        print(f"unknown figures '{name}': use one of {', '.join(PAGES)}", file=sys.stderr)
        return 2
    figures, page, make = PAGES[name]
    try:
        report = json.loads((ROOT / figures).read_text(encoding="utf-8"))
    except FileNotFoundError:
        verb = "make bench" if name == "bench" else f"make bench-{name}"
        print(f"{figures} is missing: run {verb}", file=sys.stderr)
        return 1
    path = ROOT / page
    path.write_text(rewritten(path.read_text(encoding="utf-8"), make(report)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
