"""The demo from start to end: services up, the job, the report, a summary, everything down."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from aerobee_cli.demo import flights, summary
from aerobee_cli.demo.job import GROUP, Job
from aerobee_cli.demo.progress import progress
from aerobee_cli.errors import CommandError, ProcessEnded
from aerobee_cli.signals import INTERRUPTED, Stopped, StopSignals
from aerobee_cli.suite import Suite, SuiteOptions
from aerobee_cli.supervise import Child

SPARK_MODULE = "aerobee_spark"
LOG = "demo.log"
# Of the log, shown when the report fails.
LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """`messages`: None for the whole year. `data`: None for a temporary directory."""

    messages: int | None
    out: Path
    data: Path | None
    keep: bool

    @property
    def total(self) -> int:
        return min(self.messages or flights.COUNT, flights.COUNT)


def main(plan: Plan) -> int:
    """Returns the exit code. Raises CommandError, MqError."""
    flights.archive_path()
    plan.out.mkdir(parents=True, exist_ok=True)
    with data_directory(plan) as data, (plan.out / LOG).open("w", encoding="utf-8") as log:
        try:
            asyncio.run(_live(plan, data, log))
        except Stopped:
            print("\nstopped: no process of the demo is left", file=sys.stderr)
            return INTERRUPTED
    if plan.keep:
        print(f"The broker's data is in {data}: look around with `aerobee up --data {data}`")
    return 0


@contextmanager
def data_directory(plan: Plan) -> Iterator[Path]:
    """A new directory, gone afterwards unless it is to be kept. Raises CommandError."""
    if plan.data is None:
        data = Path(tempfile.mkdtemp(prefix="aerobee-demo-"))
    else:
        data = plan.data
        data.mkdir(parents=True, exist_ok=True)
        if any(data.iterdir()):
            raise CommandError(f"{data} is not empty: the demo needs a new directory for its data")
    try:
        yield data
    finally:
        if not plan.keep:
            shutil.rmtree(data)


async def _live(plan: Plan, data: Path, log: TextIO) -> None:
    signals = StopSignals()
    showing = progress(plan.total)
    options = SuiteOptions(data, sets=("brokerName=broker-a",))
    suite = Suite(
        options,
        on_line=lambda line: _write(log, line),
        restart_broker=True,
        on_restart=lambda why: showing.say(f"  {why}; starting it again"),
    )
    try:
        showing.say("Starting a name server and a broker")
        await signals.guard(suite.start())
        showing.say(f"  namesrv {suite.namesrv_address}, broker {suite.broker_address}")
        job = Job(suite.namesrv_address, flights.read_rows(plan.messages), plan.total, showing)
        showing.say(f"Sending {plan.total:,} flights, consuming them as group {GROUP}")
        await signals.guard(job.run(), suite.watch())
        showing.close()
        showing.say("Reporting on the dead letters with Spark")
        await signals.guard(_report(suite.namesrv_address, plan.out, log), suite.watch())
        summary.write(plan.out, job)
        summary.show(plan.out, job)
    finally:
        showing.close()
        await suite.stop()


async def _report(namesrv: str, out: Path, log: TextIO) -> None:
    """Raises ProcessEnded with the last lines that the job said."""
    last: deque[str] = deque(maxlen=LAST_LINES)

    def hear(line: str) -> None:
        last.append(line)
        _write(log, line)

    arguments = ("report", "--group", GROUP, "--out", str(out), "--namesrv", namesrv)
    spark = Child("report", SPARK_MODULE, arguments, hear)
    await spark.launch()
    try:
        await spark.begin()
        if await spark.wait() != 0:
            raise spark.failure()
    except ProcessEnded:
        for line in last:
            print(f"  {line}", file=sys.stderr)
        raise
    finally:
        await spark.stop()


def _write(log: TextIO, line: str) -> None:
    log.write(line + "\n")
    log.flush()
