"""Why a service cannot start. The user gets one line of each.

StartError
├── ConfigError        a bad option
├── PortInUse          another process listens there
└── CertificateError   a certificate or its key cannot be used
"""

from __future__ import annotations


class StartError(Exception):
    """A service cannot start. The message is one line that says why and what to do."""


class ConfigError(StartError):
    """A bad option. The message names the option."""


class PortInUse(StartError):
    """The address cannot be bound. The message names it."""


class CertificateError(StartError):
    """A certificate or its key cannot be used. The message names the file."""
