"""Of all tests: examples of Hypothesis have no deadline, and SIGINT interrupts.

A machine that is busy takes its time over an example. A shell that starts `make test` in the
background has SIGINT ignored, which every process inherits: tests that interrupt one would wait.
"""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
