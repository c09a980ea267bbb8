"""Define the settings of a TLS port. The relay receives them as one JSON line."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

from aerobee_chassis.addresses import TLS_MARK

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
    key_password: str = dataclasses.field(default="", repr=False)
    watch_interval_ms: int = 10_000
    key_password_file: str = ""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """The settings of a relay.

    `listeners` contains listening file descriptors. `backend` is the path of the server's socket,
    in a private directory. With `tls_backend`, the server terminates TLS itself, and the relay
    passes connections with TLS to that socket as they are. A client has `hello_timeout_ms` to send
    its first byte and to complete a TLS handshake. There are at most `max_connections`, and
    `max_per_address` of one host.

    Connections from the networks `trusted` (CIDR) must begin with a header of the PROXY protocol.

    The name of a socket to the server is the address of the client, after `tls_mark` if the client
    uses TLS.
    """

    listeners: tuple[int, ...]
    backend: str
    tls: TlsSettings
    hello_timeout_ms: int = 10_000
    max_connections: int = 20_000
    max_per_address: int = 2_000
    trusted: tuple[str, ...] = ()
    tls_backend: str = ""
    tls_mark: str = TLS_MARK

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))
