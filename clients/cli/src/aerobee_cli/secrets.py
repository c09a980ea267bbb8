"""Read or generate the secret of a user. A secret is never an argument of a command."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from pathlib import Path

import click

from aerobee_cli import output
from aerobee_cli.options import BadOption

GENERATED_BYTES = 24  # 192 bits, 32 characters
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_secret(
    file: Path | None, *, generate: bool, options: str = "--secret-file or --generate"
) -> tuple[str, bool]:
    """Return a secret, and whether it was generated.

    It comes from `file`, from stdin if that is "-", from a generator, or from a prompt without
    echo. Raises BadOption if the options contradict each other, if the file cannot be used, or if
    there is no terminal to ask on; `options` of the command do without one.
    """
    if generate:
        if file is not None:
            raise BadOption("give --secret-file or --generate, not both")
        return secrets.token_urlsafe(GENERATED_BYTES), True
    if file is not None:
        return _of_file(file), False
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadOption(f"there is no terminal to ask for the secret: give {options}")
    secret: str = click.prompt("Secret key", hide_input=True, confirmation_prompt=True, err=True)
    return secret, False


def _of_file(file: Path) -> str:
    """Return the content of a file without the newline at its end."""
    try:
        if str(file) == "-":
            text = sys.stdin.read()
        else:
            text = file.read_text(encoding="utf-8")
            if os.name == "posix" and file.stat().st_mode & _OTHERS:
                output.note(f"warning: others may read {file}: chmod 600 it")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadOption(f"--secret-file {file}: {reason}") from None
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise BadOption(f"--secret-file {file}: it is empty")
    return secret
