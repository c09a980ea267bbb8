"""The report on the whole year of the demo, by each engine: its figures against those of the CSV,
time and memory.

    PYTHONPATH=tests .venv/bin/python -m bench.year

sends all 336,776 flights through a name server and a broker, has the demo's group consume them, and
makes the report by each engine. `--write` puts the table into docs/spark.md, between its two marks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee_cli.demo import flights
from aerobee_cli.demo.job import GROUP, Job
from aerobee_cli.demo.progress import Figures, Lines
from aerobee_spark.report.request import LOCAL, SPARK
from bench.measure import resident_mb
from support.processes.command import children
from support.processes.flight_figures import expected
from support.processes.service import namesrv_and_broker
from support.repository.tree import ROOT

PAGE = ROOT / "docs" / "spark.md"
BEGIN, END = "<!-- year: begin -->", "<!-- year: end -->"
HEAD = (
    "| engine | dead letters | messages read | seconds | processor seconds | peak memory, MB |\n"
    "|---|---:|---:|---:|---:|---:|\n"
)
SAMPLE_S = 0.1


@dataclass(frozen=True)
class Made:
    """One report: wall and processor time of the command, and the largest sum of resident memory of
    its processes, which counts pages that several of them share more than once."""

    engine: str
    dead_letters: int
    rows: int
    seconds: float
    processor_seconds: float
    peak_mb: float

    def row(self) -> str:
        return (
            f"| `{self.engine}` | {self.dead_letters:,} | {self.rows:,} | {self.seconds:.1f} | "
            f"{self.processor_seconds:.1f} | {self.peak_mb:,.0f} |\n"
        )


def main() -> int:
    given = parse()
    messages = given.messages or flights.COUNT
    with (
        tempfile.TemporaryDirectory() as folder,
        namesrv_and_broker(Path(folder)) as (namesrv, _),
    ):
        job = Job(namesrv.address, flights.read_rows(given.messages), messages, Lines(messages))
        asyncio.run(job.run())
        wanted = expected(flights.read_rows(given.messages))
        check("the consumer", job.figures(), wanted)
        found = [
            report(namesrv.address, engine, Path(folder, engine), wanted)
            for engine in given.engines.split(",")
        ]
    text = table(messages, found)
    print(text)
    if given.write:
        PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, help="only the first N flights")
    parser.add_argument("--engines", default=f"{LOCAL},{SPARK}", help="separated by commas")
    parser.add_argument("--write", action="store_true", help="the table into docs/spark.md")
    return parser.parse_args()


def check(what: str, found: Any, wanted: Any) -> None:
    """Raises SystemExit when the figures are not those of the CSV."""
    if found != wanted:
        raise SystemExit(f"{what} found {found}, and the CSV has {wanted}")


def report(namesrv: str, engine: str, out: Path, wanted: Figures) -> Made:
    """Raises SystemExit when a figure is not that of the CSV."""
    before, start = os.times(), time.perf_counter()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "aerobee_spark", "report", "--group", GROUP, "--quiet"),
            *("--namesrv", namesrv, "--out", str(out), "--engine", engine),
        ],
        stdout=subprocess.DEVNULL,
    )
    peak = [0.0]
    watcher = threading.Thread(target=watch, args=(process, peak))
    watcher.start()
    if process.wait() != 0:
        raise SystemExit(f"the report by {engine} ended with exit code {process.returncode}")
    seconds, after = time.perf_counter() - start, os.times()
    watcher.join()
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    figures = {
        "complete": summary["complete"],
        "dead_letters": summary["dead_letters"],
        "dead_messages": summary["dead_messages"],
        "retries": summary["retries"]["records"],
        "by_tag": dict(sorted(summary["dead_letters_by_tag"].items())),
        "reasons": summary["dead_letters_by_reason"],
    }
    of_the_csv = {
        "complete": True,
        "dead_letters": wanted.dead_letters,
        "dead_messages": wanted.dead_letters,
        "retries": wanted.retried,
        "by_tag": wanted.dead_letters_by_tag,
        "reasons": {"NeverArrived": wanted.dead_letters} if wanted.dead_letters else {},
    }
    check(f"the report by {engine}", figures, of_the_csv)
    processor = sum(after[2:4]) - sum(before[2:4])
    return Made(engine, summary["dead_letters"], summary["rows"], seconds, processor, peak[0])


def watch(process: subprocess.Popen[bytes], peak: list[float]) -> None:
    """Keeps the largest sum of resident memory of a process and all below it, until it ends."""
    while process.poll() is None:
        peak[0] = max(peak[0], weight(process.pid))
        time.sleep(SAMPLE_S)


def weight(pid: int) -> float:
    """MB; 0 of a process that has ended."""
    with suppress(OSError, RuntimeError):
        return resident_mb(pid) + sum(map(weight, children(pid)))
    return 0.0


def table(messages: int, found: list[Made]) -> str:
    where = f"CPython {platform.python_version()}, {os.cpu_count()} cores"
    return f"{messages:,} flights; {where}.\n\n{HEAD}{''.join(made.row() for made in found)}"


def rewritten(page: str, text: str) -> str:
    """The page with this table. Raises SystemExit when it has no place for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
