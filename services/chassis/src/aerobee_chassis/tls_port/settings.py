"""Settings of a TLS port. The relay gets them as one JSON line."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

Mode = Literal["permissive", "enforcing"]


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS options: `permissive` accepts TLS and plaintext, `enforcing` accepts TLS only.

    Without `cert_path` and `key_path` (PEM files), clients get a self-signed certificate. It is
    made when the first client speaks TLS, and is never left in a file. The files are checked every
    `watch_interval_ms`, and reloaded when they have changed and then stayed the same.
    """

    mode: Mode = "permissive"
    cert_path: str = ""
    key_path: str = ""
    key_password: str = dataclasses.field(default="", repr=False)
    watch_interval_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The settings of a relay.

    `listeners`: listening file descriptors. `backend`: the path of the server's socket, in a
    private directory. A client has `hello_timeout_ms` to send its first byte and to complete a TLS
    handshake.
    """

    listeners: tuple[int, ...]
    backend: str
    tls: TlsSettings
    hello_timeout_ms: int = 10_000

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))
