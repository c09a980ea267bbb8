"""The progress of the demo, on stdout: bars on a terminal, else lines."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import TaskID

# Between two lines.
LINE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of messages, each counted once; `retried`: of redeliveries."""

    sent: int = 0
    consumed: int = 0
    retried: int = 0
    dead: int = 0


class Progress(Protocol):
    def say(self, text: str) -> None:
        """Prints a line."""

    def update(self, counts: Counts) -> None:
        """Shows the counts so far."""

    def close(self) -> None:
        """Stops showing progress. May be called twice."""


class Lines:
    """A line every LINE_INTERVAL_S. `total`: messages to send."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._last = Counts()
        self._said_at = 0.0

    def say(self, text: str) -> None:
        print(text, flush=True)

    def update(self, counts: Counts) -> None:
        now = time.monotonic()
        finished = counts.consumed + counts.dead == self._total
        if counts != self._last and (finished or now - self._said_at >= LINE_INTERVAL_S):
            self._last, self._said_at = counts, now
            self.say(
                f"  sent {counts.sent:,} of {self._total:,}, consumed {counts.consumed:,}, "
                f"retried {counts.retried:,}, dead letters {counts.dead:,}"
            )

    def close(self) -> None:
        """Nothing to do."""


class Bars:
    """Bars for messages sent and messages finished (consumed or dead-lettered)."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            TextColumn("  {task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[remark]}"),
        )
        self._total = total
        self._sent: TaskID | None = None
        self._finished: TaskID | None = None

    def say(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def update(self, counts: Counts) -> None:
        if self._sent is None or self._finished is None:
            self._bars.start()
            self._sent = self._bars.add_task("sent", total=self._total, remark="")
            self._finished = self._bars.add_task("finished", total=self._total, remark="")
        self._bars.update(self._sent, completed=counts.sent)
        self._bars.update(
            self._finished,
            completed=counts.consumed + counts.dead,
            remark=f"retried {counts.retried:,}, dead letters {counts.dead:,}",
        )

    def close(self) -> None:
        self._bars.stop()


def progress(total: int) -> Progress:
    return Bars(total) if sys.stdout.isatty() else Lines(total)
