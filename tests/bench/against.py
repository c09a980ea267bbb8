"""Two checkouts, measured in turns: what a change costs, on a machine that is never twice the same.

    make bench ARGS='--against ../before'      # the other checkout has a .venv of its own

Each suite runs in the other checkout, then in this one, `--rounds` times; what counts is the median
of the ratios to the baselines of the same run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parents[2]


def ratios(checkout: Path, names: Iterable[str]) -> dict[str, float]:
    """Name → ratio, of one run in a checkout. Raises CalledProcessError."""
    done = subprocess.run(
        [checkout / ".venv/bin/python", "-m", "bench.run", "--json", "--only", ",".join(names)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": "tests"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    return {result["name"]: result["ratio"] for result in report["results"]}


def compare(other: Path, suites: Mapping[str, tuple[str, ...]], rounds: int) -> None:
    """Prints a table: the medians of both checkouts, and how they differ."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for names in suites.values():
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}: {', '.join(names)}", file=sys.stderr, flush=True)
            for side, checkout in enumerate((other, HERE)):
                for name, ratio in ratios(checkout, names).items():
                    found.setdefault(name, ([], []))[side].append(ratio)
    table = Table("name", "other", "this", "this/other", "all rounds: other, this", box=None)
    for name, (theirs, ours) in found.items():
        every = ", ".join(" ".join(f"{ratio:.3g}" for ratio in side) for side in (theirs, ours))
        before, after = median(theirs), median(ours)
        table.add_row(name, f"{before:.3g}", f"{after:.3g}", f"{after / before:.3f}", every)
    Console(width=160).print(table)
