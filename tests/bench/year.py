"""The whole year of the demo four ways: the report by each engine, a facts table and the report
from it, and SQL over the topics. The figures of each against those of the CSV, time and memory.

    PYTHONPATH=tests .venv/bin/python -m bench.year

sends all 336,776 flights through a name server and a broker, has the demo's group consume them, and
computes the figures each way. `--write` puts the table into docs/spark.md, between its two marks.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aerobee_cli.demo import flights
from aerobee_cli.demo.job import GROUP, Job
from aerobee_cli.demo.progress import Figures, Lines
from aerobee_spark.report.request import LOCAL, SPARK
from bench.measure import resident_mb
from support.processes.command import children
from support.processes.demo import expected
from support.processes.service import namesrv_and_broker
from support.repository.tree import ROOT

PAGE = ROOT / "docs" / "spark.md"
BEGIN, END = "<!-- year: begin -->", "<!-- year: end -->"
HEAD = (
    "| what | dead letters | messages read | seconds | processor seconds | peak memory, MB |\n"
    "|---|---:|---:|---:|---:|---:|\n"
)
SAMPLE_S = 0.1
REASON = "NeverArrived"


@dataclass(frozen=True)
class Used:
    """By a command: wall and processor time, and the largest sum of resident memory of its
    processes, which counts pages that several of them share more than once."""

    seconds: float
    processor_seconds: float
    peak_mb: float


@dataclass(frozen=True)
class Made:
    """One row of the table."""

    what: str
    dead_letters: int
    rows: int
    used: Used

    def row(self) -> str:
        return (
            f"| {self.what} | {self.dead_letters:,} | {self.rows:,} | {self.used.seconds:.1f} | "
            f"{self.used.processor_seconds:.1f} | {self.used.peak_mb:,.0f} |\n"
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
            made
            for way in given.ways.split(",")
            for made in WAYS[way](namesrv.address, Path(folder, way), wanted)
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
    parser.add_argument("--ways", default=",".join(WAYS), help="separated by commas")
    parser.add_argument("--write", action="store_true", help="the table into docs/spark.md")
    return parser.parse_args()


def check(what: str, found: Any, wanted: Any) -> None:
    """Raises SystemExit when the figures are not those of the CSV."""
    if found != wanted:
        raise SystemExit(f"{what} found {found}, and the CSV has {wanted}")


# ---- the ways; each raises SystemExit when a figure is not that of the CSV ----


def by_local(namesrv: str, out: Path, wanted: Figures) -> Iterator[Made]:
    yield report("`report --engine local`", out, wanted, "--namesrv", namesrv, "--engine", LOCAL)


def by_spark(namesrv: str, out: Path, wanted: Figures) -> Iterator[Made]:
    yield report("`report --engine spark`", out, wanted, "--namesrv", namesrv, "--engine", SPARK)


def by_table(namesrv: str, out: Path, wanted: Figures) -> Iterator[Made]:
    """The landing by each engine, and the report from the table."""
    rows = wanted.dead_letters + wanted.retried
    for engine, table in ((SPARK, out.with_name("table-of-spark")), (LOCAL, out)):
        landed = ("--namesrv", namesrv, "--group", GROUP, "--table", str(table))
        used, text = run("aerobee_spark", "facts", *landed, "--engine", engine, "--quiet", "--json")
        result = json.loads(text)
        check("the landing", (result["rows"], result["lost"], result["away"]), (rows, 0, []))
        yield Made(f"`facts --engine {engine}`", wanted.dead_letters, rows, used)
    reported = out.with_name("report-of-facts")
    yield report("`report --facts`", reported, wanted, "--facts", str(out), "--engine", LOCAL)


def by_sql(namesrv: str, out: Path, wanted: Figures) -> Iterator[Made]:
    used, text = run("support.spark.flights_in_sql", namesrv)
    found = json.loads(text)
    reasons = {REASON: wanted.dead_letters} if wanted.dead_letters else {}
    check("SQL", (found["figures"], found["reasons"]), (asdict(wanted), reasons))
    yield Made("SQL over the topics", found["figures"]["dead_letters"], found["rows"], used)


WAYS: Mapping[str, Callable[[str, Path, Figures], Iterator[Made]]] = {
    "local": by_local,
    "spark": by_spark,
    "facts": by_table,
    "sql": by_sql,
}


def report(what: str, out: Path, wanted: Figures, *given: str) -> Made:
    to = ("--group", GROUP, "--out", str(out), "--quiet", "--json")
    used, text = run("aerobee_spark", "report", *to, *given)
    summary = json.loads(text)
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
        "reasons": {REASON: wanted.dead_letters} if wanted.dead_letters else {},
    }
    check(what, figures, of_the_csv)
    return Made(what, summary["dead_letters"], summary["rows"], used)


# ---- measuring ----


def run(module: str, *given: str) -> tuple[Used, str]:
    """What a command used, and its stdout. Raises SystemExit when it fails."""
    before, start = os.times(), time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", module, *given], stdout=subprocess.PIPE, text=True
    )
    peak = [0.0]
    watcher = threading.Thread(target=watch, args=(process, peak))
    watcher.start()
    text, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{module} {' '.join(given)} ended with {process.returncode}")
    seconds, after = time.perf_counter() - start, os.times()
    watcher.join()
    return Used(seconds, sum(after[2:4]) - sum(before[2:4]), peak[0]), text


def watch(process: subprocess.Popen[str], peak: list[float]) -> None:
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
