"""Define the reasons why a service cannot start or stops itself, as one line for the user.

StartError
├── ConfigError        a bad option
├── PortInUse          another process listens there
└── CertificateError   a certificate or its key cannot be used
"""

from __future__ import annotations


class StartError(Exception):
    """A service cannot start, or must stop.

    The message is one line with the reason and a remedy. `about` names the thing to change: the key
    of an option, the path of a file, an address, or "".
    """

    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(message)
        self.about = about


class ConfigError(StartError):
    """An option is invalid, or a file that an option names has an error.

    For a file, `about` is a path in its content such as "users[0].password".
    """


class PortInUse(StartError):
    """The address cannot be bound."""


class CertificateError(StartError):
    """A certificate or its key cannot be used."""
