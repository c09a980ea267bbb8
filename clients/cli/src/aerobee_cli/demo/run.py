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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from aerobee_cli.demo import flights
from aerobee_cli.demo.job import GROUP, Job
from aerobee_cli.demo.progress import Figures, Progress, progress
from aerobee_cli.errors import INTERRUPTED, CommandError, ProcessEnded
from aerobee_cli.processes.suite import ONE_COPY, Replicas, Suite, SuiteOptions
from aerobee_cli.processes.supervise import Child, Stopped, StopSignals
from aerobee_cli.table import Column, Table, number
from aerobee_client import AsyncAdminClient, MqError
from aerobee_client.admin.descriptions import ReplicaDescription

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
        from aerobee_cli.authority import closed_ports, variables_of_admin

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


# ---- failover ----
#
# Kill the master during the demo, and wait for the new master.
#
# Without etcd, the demo promotes a replica by `promote_replica`, like an operator.


POLL_S = 0.05
# If the expected state is not reached in this time, the demo fails.
PATIENCE_S = 120.0

T = TypeVar("T")
Say = Callable[[str], None]


class Failover:
    """Runs a job of the demo with a failover.

    `broker` is the name of the broker group. `say` is called with a line of text for each step.
    """

    def __init__(self, suite: Suite, broker: str, replicas: Replicas, job: Job, say: Say) -> None:
        self._suite = suite
        self._broker = broker
        self._replicas = replicas
        self._job = job
        self._say = say

    async def run(self) -> None:
        """Run the job, and fail over in its middle.

        Return when all flights were consumed or dead-lettered and all replicas are in sync again.
        Raises MqError or CommandError.
        """
        running = asyncio.create_task(self._job.run())
        failing_over = asyncio.create_task(self._fail_over())
        try:
            await asyncio.gather(running, failing_over)
        finally:
            running.cancel()
            failing_over.cancel()
            await asyncio.gather(running, failing_over, return_exceptions=True)

    async def until_all_in_sync(self) -> None:
        """Wait until all replicas are in sync. Raises CommandError after PATIENCE_S."""
        await self._whole()

    async def _fail_over(self) -> None:
        await self._job.under_way.wait()
        old = await self._whole()
        loop = asyncio.get_running_loop()
        async with self._suite.killed(old.address):
            killed_at = loop.time()
            self._say(
                f"  killed replica {old.replica_id}, the master, after "
                f"{len(self._job.sent):,} flights"
            )
            if not self._replicas.etcd:
                await _until(self._promote, "another replica is made master")
            new = await _until(lambda: self._master_after(old), "another replica is master")
            took_s = loop.time() - killed_at
            how = "elected" if self._replicas.etcd else "promoted"
            self._say(f"  replica {new.replica_id} is {how}: master after {took_s:.1f} s")
        await self._whole()
        self._say(f"  replica {old.replica_id} is back, as a slave, and has caught up")

    async def _whole(self) -> ReplicaDescription:
        """Wait until all replicas are in sync, and return the master."""
        return await _until(self._master_of_all, "all replicas are in sync")

    async def _promote(self) -> bool:
        """Promote a replica. Raises MqError while a slave still writes received data to its log."""
        async with AsyncAdminClient(self._job.namesrv) as admin:
            await admin.promote_replica(self._broker)
        return True

    async def _found(self) -> list[ReplicaDescription]:
        async with AsyncAdminClient(self._job.namesrv) as admin:
            return await admin.replicas(self._broker, silent=[])

    async def _master_of_all(self) -> ReplicaDescription | None:
        found = await self._found()
        in_sync = [each for each in found if each.in_sync]
        return _master(found) if len(in_sync) == self._replicas.copies else None

    async def _master_after(self, old: ReplicaDescription) -> ReplicaDescription | None:
        master = _master(await self._found())
        return master if master and master.epoch > old.epoch else None


def _master(found: list[ReplicaDescription]) -> ReplicaDescription | None:
    masters = [each for each in found if each.role == "master"]
    return max(masters, key=lambda each: each.epoch, default=None)


async def _until(ask: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Wait until `ask` returns a true value, and return it.

    An MqError does not end the wait, because a process may not be ready. Raises CommandError after
    PATIENCE_S.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    error: MqError | None = None
    while loop.time() < deadline:
        try:
            if found := await ask():
                return found
        except MqError as raised:
            error = raised
        await asyncio.sleep(POLL_S)
    reason = f": {error.message}" if error else ""
    raise CommandError(f"after {PATIENCE_S:g} s it is still not so that {what}{reason}")
