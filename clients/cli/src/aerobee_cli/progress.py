"""Show the progress of a redrive, a resend or a benchmark on stderr.

On a terminal, the progress is one line that is overwritten. Otherwise it is a new line every 10 s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

TERMINAL_INTERVAL_S = 0.5
LINE_INTERVAL_S = 10.0


class Progress:
    """Shows the progress of a command.

    `now_s` is a monotonic clock. `what` names the examined items.
    """

    def __init__(
        self,
        out: TextIO,
        now_s: Callable[[], float] = time.monotonic,
        *,
        what: str = "dead letters",
    ) -> None:
        self._out = out
        self._now_s = now_s
        self._what = what
        self._overwrites = out.isatty()
        self._interval_s = TERMINAL_INTERVAL_S if self._overwrites else LINE_INTERVAL_S
        self._began_s = self._said_s = now_s()
        self._is_shown = False

    def update(self, *, looked_at: int, total: int, sent: int) -> None:
        """Print the progress if the interval since the last print is over.

        `looked_at` of `total` items are examined, and `sent` messages are sent.
        """
        self.show(lambda elapsed_s: progress_text(looked_at, total, sent, elapsed_s, self._what))

    def show(self, text_at: Callable[[float], str]) -> None:
        """Print a text if the interval since the last print is over.

        `text_at` makes the text from the time since the start, in seconds.
        """
        now_s = self._now_s()
        if now_s - self._said_s < self._interval_s:
            return
        self._said_s = now_s
        text = text_at(now_s - self._began_s)
        self._out.write(f"\r{text}\x1b[K" if self._overwrites else f"{text}\n")
        self._out.flush()
        self._is_shown = True

    def close(self) -> None:
        """Clear the line on the terminal. May be called more than once."""
        if self._overwrites and self._is_shown:
            self._out.write("\r\x1b[K")
            self._out.flush()
        self._is_shown = False


def progress_text(
    looked_at: int, total: int, sent: int, elapsed_s: float, what: str = "dead letters"
) -> str:
    """Return a line about the progress, with the rate since the start and the remaining time."""
    rate = looked_at / elapsed_s if elapsed_s else 0.0
    text = f"{looked_at:,} of {total:,} {what}, {sent:,} sent, {rate:,.0f} a second"
    if not rate or total < looked_at:
        return text
    return f"{text}, {in_words((total - looked_at) / rate)} left"


def in_words(seconds: float) -> str:
    """Format a duration in at most two units: "2 h 5 min", "1 min 7 s", "9 s"."""
    whole = round(seconds)
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {m} min"
    return f"{m} min {s} s" if m else f"{s} s"
