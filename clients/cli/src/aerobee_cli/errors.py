"""Errors of commands, beside the client's MqError, and exit codes.

The message of an error is one line for the user.

CommandError
└── ProcessEnded   a service or job that the command started has ended, or is not ready in time
"""

from __future__ import annotations

FAILED = 1
INCOMPLETE = 3  # done, but some data could not be read
INTERRUPTED = 130  # the code that a shell reports for a program that SIGINT ended


class CommandError(Exception):
    """The command cannot continue. The message is one line with the reason and what to do."""


class ProcessEnded(CommandError):
    """A process has ended, or is not ready in time.

    The message names the process, and contains its own error line if it printed one.
    """
