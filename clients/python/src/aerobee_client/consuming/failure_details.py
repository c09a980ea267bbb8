"""Describe an exception of a listener for the dead letter: its causes and its stack trace.

The application's `__str__` may raise, so texts are taken with care.
"""

from __future__ import annotations

import os
import socket
import traceback

from aerobee_wire import properties as names

REASON_BYTES = 256
DESCRIPTION_BYTES = 1_024
CAUSE_BYTES = 1_024
STACK_TRACE_BYTES = 4_096
MAX_CAUSES = 8
MAX_FRAMES = 30  # the innermost ones


def text_of(error: BaseException) -> str:
    """Return the text of an exception of the application, whose `__str__` may raise."""
    try:
        return str(error)
    except Exception as failure:
        return f"(its __str__ raised {type(failure).__name__})"


def causes_of(error: BaseException) -> str:
    """Return the exceptions that caused `error`, the nearest first, each as "class: text"."""
    lines: list[str] = []
    cause = _cause(error)
    while cause is not None and len(lines) < MAX_CAUSES:
        text = text_of(cause)
        name = type(cause).__name__
        lines.append(f"{name}: {text}" if text else name)
        cause = _cause(cause)
    return names.cut("\n".join(lines), CAUSE_BYTES)


def _cause(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def stack_trace_of(error: BaseException) -> str:
    """Return the stack trace of an exception of a listener; the innermost call is last."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        trace = trace.tb_next  # without the frame of this client that called the listener
    frames = traceback.extract_tb(trace)[-MAX_FRAMES:]
    return names.cut_start("".join(traceback.format_list(frames)), STACK_TRACE_BYTES)


def this_consumer() -> str:
    """Return the host and the process id of this consumer: "HOST@PID"."""
    return f"{socket.gethostname()}@{os.getpid()}"
