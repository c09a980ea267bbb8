"""Run the demo: start the services, run the job and the report, print a summary, and stop.

The summary is a table on stdout, and numbers that are added to the report's summary.json.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from aerobee_cli.demo import flights
from aerobee_cli.demo.failover import Failover
from aerobee_cli.demo.job import GROUP, Job
from aerobee_cli.demo.progress import Figures, Progress, progress
from aerobee_cli.errors import INTERRUPTED, CommandError, ProcessEnded
from aerobee_cli.processes.suite import ONE_COPY, Replicas, Suite, SuiteOptions
from aerobee_cli.processes.supervise import Child, Stopped, StopSignals
from aerobee_cli.table import Column, Table, number

SPARK_MODULE = "aerobee_spark"
SUMMARY = "summary.json"
PAGE = "report.html"
LOG = "demo.log"
BROKER = "broker-a"
# Prefix of the report's progress lines.
REPORT_PROGRESS = "report:"


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the demo.

    If `messages` is None, all flights of the year are sent. If `data` is None, a temporary
    directory is used. If `replicas` has more than one copy, the demo kills the master of the broker
    group in the middle. If it is `secure`, the services and the clients have certificates.
    """

    messages: int | None
    out: Path
    data: Path | None
    keep: bool
    replicas: Replicas = ONE_COPY
    secure: bool = False

    @property
    def total(self) -> int:
        return min(self.messages or flights.COUNT, flights.COUNT)


def main(plan: Plan) -> int:
    """Run the demo and return the exit code. Raises CommandError or MqError."""
    flights.archive_path()
    plan.out.mkdir(parents=True, exist_ok=True)
    with data_directory(plan) as data, (plan.out / LOG).open("w", encoding="utf-8") as log:
        try:
            asyncio.run(_run(plan, data, log))
        except Stopped:
            print("\nstopped: no process of the demo is left", file=sys.stderr)
            return INTERRUPTED
        except ProcessEnded as error:
            raise CommandError(f"{error} ({plan.out / LOG})") from error
    if plan.keep:
        same = f" --replicas {plan.replicas.copies}" if plan.replicas.copies > 1 else ""
        same += f" --secure --set brokerName={BROKER}" if plan.secure else ""
        print(f"The broker's data is in {data}: look around with `aerobee up{same} --data {data}`")
    return 0


@contextmanager
def data_directory(plan: Plan) -> Iterator[Path]:
    """Provide a directory, and remove it afterwards unless `plan.keep`.

    Raises CommandError if the given directory is not empty.
    """
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


async def _run(plan: Plan, data: Path, log: TextIO) -> None:
    signals = StopSignals()
    showing = progress(plan.total)
    sets = [f"brokerName={BROKER}"]
    if plan.secure:
        from aerobee_cli.closed_ports import closed_ports, variables_of_admin

        sets = closed_ports(data / "secure", BROKER)
        os.environ.update(variables_of_admin(data / "secure"))  # of the clients, and of the report
    options = SuiteOptions(data, sets=sets, replicas=plan.replicas)
    suite = Suite(
        options,
        on_line=lambda line: _write(log, line),
        restart_broker=True,
        on_restart=lambda why: showing.say(f"  {why}; starting it again"),
    )
    try:
        brokers = "a broker" if plan.replicas.copies == 1 else f"{plan.replicas.copies} brokers"
        showing.say(f"Starting a name server and {brokers}")
        await signals.guard(suite.start())
        showing.say(f"  namesrv {suite.namesrv_address}, broker {suite.broker_address}")
        job = Job(suite.namesrv_address, flights.read_rows(plan.messages), plan.total, showing)
        work = job.run
        if plan.replicas.copies > 1:
            failover = Failover(suite, BROKER, plan.replicas, job, showing.say)
            await signals.guard(failover.until_all_in_sync(), suite.watch())
            work = failover.run
        showing.say(f"Sending {plan.total:,} flights, consuming them as group {GROUP}")
        await signals.guard(work(), suite.watch())
        showing.close()
        showing.say("Reporting on the dead letters, with Spark where there is Java")
        await signals.guard(_report(job, plan.out, showing, log), suite.watch())
        _complete(plan.out, job)
        _show(plan.out, job)
    finally:
        showing.close()
        await suite.stop()


async def _report(job: Job, out: Path, showing: Progress, log: TextIO) -> None:
    """Run the report. Raises ProcessEnded if it fails."""

    def on_line(line: str) -> None:
        _write(log, line)
        if line.startswith(REPORT_PROGRESS):
            showing.say(f"  {line.removeprefix(REPORT_PROGRESS).strip()}")

    with tempfile.NamedTemporaryFile("w", dir=out, prefix=".figures-", suffix=".json") as figures:
        json.dump(_extra(job), figures)
        figures.flush()
        arguments = [
            *("report", "--group", GROUP, "--out", str(out), "--namesrv", job.namesrv),
            *("--extra-json", figures.name),
            # Spark for any number of messages; without Java, the other engine.
            *("--engine", "auto", "--local-up-to", "0"),
        ]
        report = Child("report", SPARK_MODULE, arguments, on_line)
        await report.launch()
        try:
            await report.begin()
            if await report.wait() != 0:
                raise report.failure()
        finally:
            await report.stop()


def _write(log: TextIO, line: str) -> None:
    log.write(line + "\n")
    log.flush()


def _extra(job: Job) -> dict[str, Any]:
    """Return the results that only the demo's consumer knows. The report shows them too."""
    names = ("messages_sent", "messages_consumed", "retried", "mean_arrival_delay_by_tag")
    figures = dataclasses.asdict(job.figures())
    return {name: figures[name] for name in names}


def _complete(out: Path, job: Job) -> None:
    """Add the results of the job to summary.json, so that it counts messages instead of records.

    The numbers differ after a crash of a broker, because a redelivered message may be in the
    dead-letter topic twice. `complete` is true if the report has read all records, and every
    message was consumed or dead-lettered.
    """
    path = out / SUMMARY
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    figures = dataclasses.asdict(job.figures())
    is_complete = bool(report["complete"]) and job.is_finished()
    counted = {"complete": is_complete, **figures, "dead_letter_records": report["dead_letters"]}
    # The figures of the demo come first in the file.
    summary = counted | {name: value for name, value in report.items() if name not in counted}
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(path)


def _show(out: Path, job: Job) -> None:
    """Print the results and the path of the report."""
    figures = job.figures()
    print()
    for title, count in (
        ("messages sent", figures.messages_sent),
        ("messages consumed", figures.messages_consumed),
        ("retried", figures.retried),
        ("dead letters", figures.dead_letters),
    ):
        print(f"  {title:<18}{count:>9,}")
    columns = (
        Column("carrier", "carrier"),
        number("flights counted", "consumed"),
        Column("mean arrival delay, minutes", "delay", _minutes, right=True),
        number("dead letters", "dead_letters"),
    )
    Table(columns).show(_by_carrier(figures, job.delays.count_by_carrier()))
    print(f"The report: {out / PAGE} (figures: {out / SUMMARY})")


def _by_carrier(figures: Figures, consumed: dict[str, int]) -> list[dict[str, Any]]:
    carriers = sorted(figures.mean_arrival_delay_by_tag.keys() | figures.dead_letters_by_tag.keys())
    return [
        {
            "carrier": carrier,
            "consumed": consumed.get(carrier, 0),
            "delay": figures.mean_arrival_delay_by_tag.get(carrier),
            "dead_letters": figures.dead_letters_by_tag.get(carrier, 0),
        }
        for carrier in carriers
    ]


def _minutes(delay: float | None) -> str:
    return "" if delay is None else f"{delay:.1f}"
