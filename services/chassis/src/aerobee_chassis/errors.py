"""Define the reasons why a service cannot start or stops itself, as one line for the user.

StartError
├── ConfigError        a bad option
├── PortInUse          another process listens there
└── CertificateError   a certificate or its key cannot be used
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self


class StartError(Exception):
    """A service cannot start, or must stop.

    The message is one line with the reason and a remedy, or a line for each problem. `about` names
    the thing to change: the key of an option, the path of a file, an address, or "".
    """

    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(message)
        self.about = about


class ConfigError(StartError):
    """An option is invalid, or a file that an option names has an error.

    For a file, `about` is a path in its content such as "users[0].password". `problems` are the
    errors of which this one consists; it is the only one unless `joined` made it.
    """

    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(message, about)
        self.problems: tuple[ConfigError, ...] = (self,)

    @classmethod
    def joined(cls, problems: Sequence[ConfigError], where: str) -> Self | ConfigError:
        """Return one error for several problems, which are in `where`; a single one as it is."""
        if len(problems) == 1:
            return problems[0]
        lines = "".join(f"\n  {problem}" for problem in problems)
        result = cls(f"{where}: {len(problems)} problems{lines}", problems[0].about)
        result.problems = tuple(problems)
        return result


class PortInUse(StartError):
    """The address cannot be bound."""


class CertificateError(StartError):
    """A certificate or its key cannot be used."""
