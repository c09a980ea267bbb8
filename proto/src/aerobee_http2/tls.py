"""The TLS of a client's connections."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from aerobee_wire.certificates import Pem


def client_context(pem: Pem) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later with HTTP/2 that accepts only `pem.authorities`.

    `ssl` can read a certificate and its key only from a file. So they are written to a file that
    only this user can read, and removed again.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_verify_locations(cadata=pem.authorities.decode("ascii", "replace"))
    if pem.certificate:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "client")
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(pem.certificate + b"\n" + pem.key)
            context.load_cert_chain(path)
    return context
