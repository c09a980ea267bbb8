"""Define the settings of the certificate that a port presents to SDKs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["permissive", "enforcing"]


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS options.

    The mode `permissive` accepts TLS and plaintext; `enforcing` accepts only TLS.

    Without `cert_path` and `key_path` (PEM files), clients get a self-signed certificate. It is
    created when the first client uses TLS, and is never left in a file. With files, they are
    checked every `watch_interval_ms`. They are reloaded after they have changed and then stayed the
    same for one interval, together with `key_password_file`, which has the password of the key.
    """

    mode: Mode = "permissive"
    cert_path: str = ""
    key_path: str = ""
    key_password: str = field(default="", repr=False)
    watch_interval_ms: int = 10_000
    key_password_file: str = ""
