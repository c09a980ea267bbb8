"""Define `aerobee completion`: complete commands and options in a shell."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import click

from aerobee_cli.command_line import Argument, CommandGroup

PROGRAM, VARIABLE = "aerobee", "_AEROBEE_COMPLETE"  # as click names it for this program

app = CommandGroup()


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.add(
    epilog="Example: aerobee completion bash > ~/.local/share/bash-completion/completions/aerobee"
)
def completion(
    context: click.Context, *, shell: Annotated[Shell, Argument(metavar="bash|zsh|fish")]
) -> None:
    """Print a script that completes commands and options of `aerobee` in a shell.

    bash: write it to a file of this name in the directory of completions, or `eval` it. zsh: write
    it to the file _aerobee in a directory of $fpath. fish: ~/.config/fish/completions/aerobee.fish.
    """
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell.value)
    assert kind is not None, "click knows these shells"
    complete = kind(context.find_root().command, {}, PROGRAM, VARIABLE)
    # The method of the base class: that of bash would look for a bash of this machine first.
    sys.stdout.write(ShellComplete.source(complete))
