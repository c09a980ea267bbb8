"""The TLS of connections."""

from __future__ import annotations

import os
import ssl
import tempfile
from functools import lru_cache
from pathlib import Path

from aerobee_wire.certificates import Pem


# The channels of a process share one: to decrypt a key may take 100 ms.
@lru_cache(maxsize=2)
def client_context(pem: Pem) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later with HTTP/2 that accepts only `pem.authorities`.

    Do not change it: equal certificates have the same context.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    _accept(context, pem.authorities)
    if pem.certificate:
        _present(context, pem)
    return context


def server_context(pem: Pem, checks_clients: bool) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later with HTTP/2 that presents `pem.certificate`.

    If it `checks_clients`, only clients with a certificate of `pem.authorities` are accepted. No
    session is resumed, because the certificate of the client may have expired since it began.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    if checks_clients:
        context.verify_mode = ssl.CERT_REQUIRED
        _accept(context, pem.authorities)
    _present(context, pem)
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    # In TLS 1.2, a peer may renegotiate repeatedly, which is cheap for a client but expensive for a
    # server.
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _accept(context: ssl.SSLContext, authorities: bytes) -> None:
    context.load_verify_locations(cadata=authorities.decode("ascii", "replace"))


def _present(context: ssl.SSLContext, pem: Pem) -> None:
    """Load the certificate and its key.

    `ssl` can read them only from a file. So they are written to a file that only this user can
    read, and removed again.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "pem")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(pem.certificate + b"\n" + pem.key)
        # With an empty password, OpenSSL does not ask the terminal for that of an encrypted key.
        context.load_cert_chain(path, password=pem.password)
