"""End a command whose reader has closed the pipe, as `head` does when it has read enough.

SIGPIPE then ends programs in C and Go. Python ignores this signal, so that a lost connection does
not end a process, and a write raises BrokenPipeError instead.
"""

from __future__ import annotations

import os
import sys

# The code that a shell reports for a program that SIGPIPE (13) ended.
EXIT_CODE = 128 + 13


def discard_output() -> int:
    """Discard what this process has not printed yet, and return its exit code.

    Call this after a BrokenPipeError. Otherwise Python flushes the output when it exits, and prints
    the error again.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nothing, stream.fileno())
    return EXIT_CODE
