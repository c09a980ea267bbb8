"""Load the certificate of a port: from files, or from one text."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from aerobee_chassis.errors import CertificateError


def load(cert_path: str, key_path: str, password: str = "") -> ssl.SSLContext:
    """Return a server context for TLS 1.2 and later, with HTTP/2. Raises CertificateError."""
    for what, path in (("certificate", cert_path), ("private key", key_path)):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            problem = f"cannot read the {what} {path}: {error.strerror}"
            raise CertificateError(problem, path) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    # In TLS 1.2, a client may renegotiate repeatedly, which is cheap for the client but expensive
    # for the server.
    context.options |= ssl.OP_NO_RENEGOTIATION
    encrypted = False

    def give_password() -> str:  # without a callback, OpenSSL asks at the terminal
        nonlocal encrypted
        encrypted = True
        return password

    try:
        context.load_cert_chain(cert_path, key_path, password=give_password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "reason", None)
        about = key_path
        if reason == "KEY_VALUES_MISMATCH":
            problem = f"the private key {key_path} is not the one of the certificate {cert_path}"
        elif encrypted:
            why = ", and the password of tlsKeyPasswordFile is wrong" if password else ""
            problem = f"the private key {key_path} is encrypted{why}: give its password"
            about = "tlsKeyPasswordFile"
        else:
            about = cert_path
            problem = f"certificate {cert_path} and key {key_path} cannot be used: {error}"
        raise CertificateError(problem, about) from None
    return context


def read_password(path: str) -> str:
    """Return the content of a file without the newline at its end. Raises CertificateError."""
    try:
        text = Path(path).expanduser().read_text("utf-8")
        return text.removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        problem = f"cannot read the password of the private key {path}: {reason}"
        raise CertificateError(problem, "tlsKeyPasswordFile") from None


def load_pem(pem: bytes) -> ssl.SSLContext:
    """Return a server context from a key and its certificate in one text.

    `ssl` can only read files. So the text is written to a file that only this user can read, and
    then removed. Raises CertificateError, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="aerobee-") as directory:
        path = Path(directory, "self-signed")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(pem)
        return load(str(path), str(path))
