"""Define the entry point of `aerobee`. It runs a command, and prints an error as one line.

Exit codes: 0 done, 1 failed, 2 wrong command line, 3 done, but some data could not be read, 130
interrupted, 141 the reader of the output closed its pipe.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from aerobee_cli.errors import INTERRUPTED, CommandError
from aerobee_wire import closed_pipe

# Set this variable to see the traceback of an unexpected error.
TRACEBACK_VARIABLE = "AEROBEE_TRACEBACK"
# Imports create objects that live as long as the process. With the default threshold (700), looking
# for garbage among them takes 7 % of the time of a command.
YOUNG_OBJECTS = 50_000


@contextmanager
def collecting_late() -> Iterator[None]:
    """Let the garbage collector begin in the block when there are YOUNG_OBJECTS.

    A short command ends before. A long one has imported everything by then, and continues with the
    former threshold, so that its garbage does not accumulate.
    """
    before = gc.get_threshold()

    def restore(phase: str, info: Mapping[str, int]) -> None:
        gc.set_threshold(*before)

    gc.callbacks.append(restore)
    gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(restore)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. `arguments` do not include the program's name."""
    try:
        with collecting_late():
            return _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return closed_pipe.discard_output()


def _run(arguments: list[str]) -> int:
    from aerobee_cli.app import app

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller has closed it
            nothing = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nothing, "w", encoding="utf-8"))
    stdout = sys.stdout
    try:
        code = app.main(arguments, prog_name="aerobee", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _print_usage(error)
    except click.Abort:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except SystemExit:
        # click exits with code 1 if a pipe is closed, after it has replaced stdout.
        if sys.stdout is stdout:
            raise
        sys.stdout = stdout
        raise BrokenPipeError from None
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        _note(f"error: {_one_line(explain(error))}")
        return 1
    return code if isinstance(code, int) else 0


def explain(error: Exception) -> str:
    from aerobee_wire.status import MqError

    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, (CommandError, MqError, OSError)):
        return str(error)
    kind = type(error).__name__
    return f"{kind}: {error} (unexpected; {TRACEBACK_VARIABLE}=1 shows where)"


def _print_usage(error: click.ClickException) -> int:
    if error.message.startswith("Usage:"):  # a group of commands without a command
        print(error.message)
        return 2
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    _note(f"error: {_one_line(error.format_message())}{hint}")
    return error.exit_code


def _note(text: str) -> None:
    from aerobee_cli.output import note

    note(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())
