"""What a command fails with, beside the client's MqError, and exit codes other than 0, 1 and 2. The
message of an error is one line for the user.

CommandError
└── ProcessEnded   a service or job that the command started has ended, or is not ready in time
"""

from __future__ import annotations

FAILED = 1
INCOMPLETE = 3  # done, but not everything could be read
INTERRUPTED = 130  # what a shell reports for a program that ended by SIGINT


class CommandError(Exception):
    """The command cannot go on. The message is one line that says why and what to do."""


class ProcessEnded(CommandError):
    """The message says which process, and its own error line if it printed one."""
