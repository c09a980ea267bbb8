"""Certificates for tests: self-signed for localhost, in files."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from aerobee_chassis.tls_port.self_signed import make

NAMES = ["localhost", "127.0.0.1", "::1"]


def write(directory: Path, name: str = "server") -> tuple[Path, Path]:
    """A new certificate and its key: the paths of both."""
    pem = make(NAMES, datetime.datetime.now(datetime.UTC))
    middle = pem.index(b"-----BEGIN CERTIFICATE")
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    key.write_bytes(pem[:middle])
    certificate.write_bytes(pem[middle:])
    return certificate, key


def encrypt(key: Path, password: str) -> None:
    """Encrypt the key in a file."""
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        plain.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
    )


def serial(certificate: Path | str) -> int:
    """Of a file, or of a text as `ssl.get_server_certificate` gives it."""
    text = certificate.read_text() if isinstance(certificate, Path) else certificate
    return x509.load_pem_x509_certificate(text.encode()).serial_number


def shown(port: int) -> int:
    """The serial number of what a port of this host shows. Blocks."""
    return serial(ssl.get_server_certificate(("127.0.0.1", port), timeout=20))
