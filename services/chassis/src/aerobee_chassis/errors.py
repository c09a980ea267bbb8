"""The reasons why a service cannot start, or stops itself. The user gets one line for each.

StartError
├── ConfigError        a bad option
├── PortInUse          another process listens there
└── CertificateError   a certificate or its key cannot be used
"""

from __future__ import annotations


class StartError(Exception):
    """A service cannot start, or must stop.

    The message is one line that says why, and what to do. `about`: what to change, as the key of an
    option, the path of a file or an address; empty if none of these applies.
    """

    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(message)
        self.about = about


class ConfigError(StartError):
    """A bad option, or an error in a file that an option names (`about`: "users[0].password")."""


class PortInUse(StartError):
    """The address cannot be bound."""


class CertificateError(StartError):
    """A certificate or its key cannot be used."""
