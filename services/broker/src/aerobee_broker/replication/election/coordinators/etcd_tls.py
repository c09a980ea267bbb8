"""Read the TLS certificates for connections from a broker to etcd, once at the start."""

from __future__ import annotations

import ssl
from pathlib import Path

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.errors import CertificateError
from aerobee_chassis.rpc.transport import ChannelTls


def etcd_tls(options: BrokerOptions) -> ChannelTls | None:
    """Return the TLS settings for etcd, or None for plaintext.

    Raises CertificateError, which names the file.
    """
    if not options.etcd_ca_path:
        return None
    authorities = _read("etcdCaPath", options.etcd_ca_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(options.etcd_ca_path)
    except ssl.SSLError as error:
        raise _unusable("etcdCaPath", options.etcd_ca_path, "no certificate in PEM") from error
    if not options.etcd_cert_path:
        return ChannelTls(authorities)
    certificate = _read("etcdCertPath", options.etcd_cert_path)
    key = _read("etcdKeyPath", options.etcd_key_path)
    try:
        # An empty password: OpenSSL then rejects an encrypted key instead of asking for its
        # password.
        context.load_cert_chain(options.etcd_cert_path, options.etcd_key_path, password="")
    except (ssl.SSLError, ValueError) as error:
        what = f"no key of the certificate {options.etcd_cert_path}, in PEM and without a password"
        raise _unusable("etcdKeyPath", options.etcd_key_path, what) from error
    return ChannelTls(authorities, certificate, key)


def _read(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unusable(option, path, error.strerror or str(error)) from error


def _unusable(option: str, path: str, why: str) -> CertificateError:
    return CertificateError(f"{option} {path} cannot be used: {why}; give another file", path)
