"""Define the entry point of `aerobee`. It runs a command, and prints an error as one line.

Exit codes: 0 done, 1 failed, 2 wrong command line, 3 done, but some data could not be read, 130
interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import click

from aerobee_cli.errors import INTERRUPTED, CommandError

# Set this variable to see the traceback of an unexpected error.
TRACEBACK_VARIABLE = "AEROBEE_TRACEBACK"
# Imports create objects that live as long as the process. With the default threshold (700), looking
# for garbage among them takes 7 % of the time of a command.
YOUNG_OBJECTS = 50_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. `arguments` do not include the program's name."""
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe. Without this, the flush at exit would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    from aerobee_cli.app import app

    try:
        code = app.main(arguments, prog_name="aerobee", standalone_mode=False)
    except click.ClickException as error:
        return _print_usage(error)
    except click.Abort:
        return INTERRUPTED
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        _note(f"error: {_one_line(explain(error))}")
        return 1
    sys.stdout.flush()
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
