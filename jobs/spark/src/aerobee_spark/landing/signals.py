"""Record signals in place of an exception, so that a job ends between two steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Record SIGINT and SIGTERM during the block, and yield the list of recorded signal numbers.

    The signal handler does not raise, because an exception during a call into Java would make the
    connection unusable.
    """
    noted: list[int] = []

    def note(number: int, frame: object) -> None:
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
