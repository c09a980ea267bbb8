"""Define the figures of the demo, and show its progress on stdout.

On a terminal the progress is shown as bars, otherwise as lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import TaskID

# The interval between two lines.
LINE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of the demo. Each message is counted once.

    `messages_consumed` is the number of flights whose delay was counted, and `retried` the number
    of redeliveries. The mean arrival delay is in minutes; a negative delay means an early arrival.
    """

    messages_sent: int = 0
    messages_consumed: int = 0
    retried: int = 0
    dead_letters: int = 0
    dead_letters_by_tag: Mapping[str, int] = field(default_factory=dict)
    mean_arrival_delay_by_tag: Mapping[str, float] = field(default_factory=dict)


class Progress(Protocol):
    def say(self, text: str) -> None: ...
    def update(self, figures: Figures) -> None: ...
    def close(self) -> None:
        """Stop showing progress. May be called more than once."""


class Lines:
    """Shows progress as a line every LINE_INTERVAL_S. `total` is the number of messages to send."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._last = Figures()
        self._said_at = 0.0

    def say(self, text: str) -> None:
        print(text, flush=True)

    def update(self, figures: Figures) -> None:
        now = time.monotonic()
        finished = figures.messages_consumed + figures.dead_letters == self._total
        if figures != self._last and (finished or now - self._said_at >= LINE_INTERVAL_S):
            self._last, self._said_at = figures, now
            self.say(
                f"  sent {figures.messages_sent:,} of {self._total:,}, "
                f"consumed {figures.messages_consumed:,}, retried {figures.retried:,}, "
                f"dead letters {figures.dead_letters:,}"
            )

    def close(self) -> None:
        """Do nothing."""


class Bars:
    """Shows progress as two bars: for sent messages, and for consumed or dead-lettered messages."""

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

    def update(self, figures: Figures) -> None:
        if self._sent is None or self._finished is None:
            self._bars.start()
            self._sent = self._bars.add_task("sent", total=self._total, remark="")
            self._finished = self._bars.add_task("finished", total=self._total, remark="")
        self._bars.update(self._sent, completed=figures.messages_sent)
        self._bars.update(
            self._finished,
            completed=figures.messages_consumed + figures.dead_letters,
            remark=f"retried {figures.retried:,}, dead letters {figures.dead_letters:,}",
        )

    def close(self) -> None:
        self._bars.stop()


def progress(total: int) -> Progress:
    return Bars(total) if sys.stdout.isatty() else Lines(total)
