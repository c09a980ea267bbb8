"""Define the entry point of `aerobee`. It runs a command, and prints an error as one line.

Exit codes: 0 done, 1 failed, 2 wrong command line, 3 done, but some data could not be read, 130
interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aerobee_cli.errors import INTERRUPTED, CommandError

if TYPE_CHECKING:
    from typer.exceptions import TyperException

# Set this variable to see the traceback of an unexpected error.
TRACEBACK_VARIABLE = "AEROBEE_TRACEBACK"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. `arguments` do not include the program's name."""
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe. Without this, the flush at exit would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    import logging

    import typer
    from typer.exceptions import TyperException

    from aerobee_cli.app import app

    # A command prints its own errors and warnings, so the log of the client does not repeat them.
    logging.getLogger("aerobee_client").addHandler(logging.NullHandler())
    try:
        code = app(arguments, prog_name="aerobee", standalone_mode=False)
    except TyperException as error:
        return _print_usage(error)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        print(f"error: {_one_line(explain(error))}", file=sys.stderr)
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


def _print_usage(error: TyperException) -> int:
    if error.message.startswith("Usage:"):  # a group of commands without a command
        print(error.message)
        return 2
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    print(f"error: {_one_line(error.format_message())}{hint}", file=sys.stderr)
    return error.exit_code


def _one_line(text: str) -> str:
    return " ".join(text.split())
