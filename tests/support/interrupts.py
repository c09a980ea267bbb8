"""KeyboardInterrupts at chosen places of this thread, in place of Ctrl-C, which comes anywhere."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupted_at(number: int, *files: str) -> Iterator[Sequence[str]]:
    """Raise a KeyboardInterrupt before line `number`, counted from 0, that the block executes in
    files with these ends. The given list then has that place; it stays empty when the block
    executes fewer lines.

    Python takes signals between lines too, but only at calls and at jumps back: what a call returns
    is stored, returned or yielded without one in between. Lines that begin with `yield` do not
    count, nor do those with `with`: they are executed again to leave the block, where Python takes
    no signal.
    """
    count = 0
    places: list[str] = []

    def trace_line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "line" and not places and not _is_exempt(frame):
            count += 1
            if count > number:
                places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                raise KeyboardInterrupt
        return trace_line

    def trace_call(frame: FrameType, _: str, __: Any) -> Any:
        return trace_line if frame.f_code.co_filename.endswith(files) else None

    before = sys.gettrace()
    sys.settrace(trace_call)
    try:
        yield places
    finally:
        sys.settrace(before)


def _is_exempt(frame: FrameType) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.lstrip().startswith(("with ", "yield "))
