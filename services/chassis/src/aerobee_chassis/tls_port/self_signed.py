"""Create a self-signed certificate: `python -m aerobee_chassis.tls_port.self_signed NAME …`.

The program writes the private key and the certificate to stdout, in PEM. It is a separate program,
so that a long-running process does not keep the library (20 MB) in memory.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from aerobee_chassis.clock import SystemClock

COMMON_NAME = "aerobee self-signed"
VALID = datetime.timedelta(days=3650)  # clients that accept it do not verify it
CLOCK_SKEW = datetime.timedelta(days=1)


def make(names: list[str], now: datetime.datetime) -> bytes:
    """Create a key and a certificate for host names and IP addresses.

    The key is on the curve P-256, which every TLS library of the last decade accepts.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, COMMON_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), False)
        # The certificate is its own authority, so that a client can be configured to trust it.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def main(names: list[str]) -> None:
    now = datetime.datetime.fromtimestamp(SystemClock().now_ms() / 1000, datetime.UTC)
    with contextlib.suppress(BrokenPipeError):  # the service has exited
        sys.stdout.buffer.write(make(names, now))


if __name__ == "__main__":
    main(sys.argv[1:])
