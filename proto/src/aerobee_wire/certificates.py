"""Read certificates for TLS between Aerobee's processes, again when their files change.

A certificate of a service has the DNS names "ROLE.CLUSTER.aerobee" and "NAME.ROLE.CLUSTER.aerobee".
A caller can require one of them in place of the host's, because addresses in containers change.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from aerobee_wire.identity import BROKER, NAMESRV, PROXY

HOST, NAME = "host", "name"  # what a caller requires of a certificate

_NAMESRV_SERVICES = (
    "/aerobee.namesrv.",
    "/aerobee.access.v1.Namesrv",
    "/aerobee.audit.v1.Namesrv",
)

_PROXY_SERVICES = ("/aerobee.broker.v1.Proxy",)

PASSWORD_FILE = "tlsKeyPasswordFile"  # the option with the path of a password

Stamp = tuple[tuple[int, int, int], ...]


def certificate_name(role: str, cluster: str) -> str:
    """Return the DNS name of a role in the certificates of a cluster."""
    return f"{role}.{cluster}.aerobee"


def needs_no_tls(host: str) -> bool:
    """Return whether only this machine can connect to a port on `host`, which is loopback.

    A host name other than "localhost" counts as an address that other machines can reach.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def role_of(path: str) -> str:
    """Return the role of the service that serves the RPC at `path` ("/package.Service/Method")."""
    if path.startswith(_PROXY_SERVICES):
        return PROXY
    return NAMESRV if path.startswith(_NAMESRV_SERVICES) else BROKER


class Pem(NamedTuple):
    """The contents of certificate files. A part without a file is empty.

    `password` is that of an encrypted key, and empty for another key.
    """

    authorities: bytes
    certificate: bytes
    key: bytes
    password: str = ""


class UnusableCertificate(Exception):
    """A file cannot be used as certificate or key.

    `option` is the name of the option that names the file, and `path` is the path of the file.
    """

    def __init__(self, option: str, path: str, why: str) -> None:
        super().__init__(f"{option} {path} cannot be used: {why}; give another file")
        self.option = option
        self.path = path


class OptionNames(NamedTuple):
    """The names of the options that name the files, for error messages."""

    authorities: str = "tlsTrustCertPath"
    certificate: str = "tlsCertPath"
    key: str = "tlsKeyPath"


@dataclass(slots=True)
class CertificateFiles:
    """The certificate files of one process, in PEM.

    `authorities` may have signed the certificate of the other side. `certificate` and `key` are
    presented to the other side. An empty path is a file that is not given.

    The key may be encrypted if `password` is given, which returns its password or raises OSError.
    """

    authorities: str = ""
    certificate: str = ""
    key: str = ""
    names: OptionNames = field(default_factory=OptionNames)
    password: Callable[[], str] | None = field(default=None, repr=False)
    _seen: Stamp = field(default=(), repr=False)

    def load(self) -> Pem:
        """Read and check the files. Raises UnusableCertificate."""
        while True:
            self._seen = self._stamp()
            pem = Pem(
                self._read(self.names.authorities, self.authorities),
                self._read(self.names.certificate, self.certificate),
                self._read(self.names.key, self.key),
            )
            pem = pem._replace(password=self._key_password(pem.key))
            self._check(pem.password)
            if self._stamp() == self._seen:  # else the check may have read other contents
                return pem

    def changed(self) -> Pem | None:
        """Return the contents if the files have changed since they were read, else None.

        Raises UnusableCertificate once for each change that cannot be used. Files are not replaced
        at once, so this may be a certificate whose key follows.
        """
        return self.load() if self._stamp() != self._seen else None

    def _stamp(self) -> Stamp:
        stamps = []
        for path in filter(None, (self.authorities, self.certificate, self.key)):
            try:
                status = Path(path).stat()
            except OSError:
                stamps.append((0, 0, 0))
            else:
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(stamps)

    def _read(self, option: str, path: str) -> bytes:
        if not path:
            return b""
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise UnusableCertificate(option, path, error.strerror or str(error)) from error

    def _key_password(self, key: bytes) -> str:
        """Return the password of an encrypted key, or "" for another key."""
        if b"ENCRYPTED" not in key or self.password is None:
            return ""
        try:
            password = self.password()
        except OSError as error:
            why = f"it is encrypted, and its password cannot be read: {error.strerror}"
            raise UnusableCertificate(self.names.key, self.key, why) from error
        if not password:
            why = f"it is encrypted, and {PASSWORD_FILE} is not given"
            raise UnusableCertificate(self.names.key, self.key, why)
        return password

    def _check(self, password: str) -> None:
        import ssl  # only here: most processes use no TLS

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.authorities:
            try:
                context.load_verify_locations(self.authorities)
            except (ssl.SSLError, OSError) as error:
                name = self.names.authorities
                raise UnusableCertificate(
                    name, self.authorities, "no certificate in PEM"
                ) from error
        if self.certificate:
            try:
                # With an empty password, OpenSSL rejects an encrypted key instead of asking for
                # its password.
                context.load_cert_chain(self.certificate, self.key, password=password)
            except (ssl.SSLError, OSError, ValueError) as error:
                why = f"no key of the certificate {self.certificate}, in PEM and without a password"
                if password and getattr(error, "reason", "") != "KEY_VALUES_MISMATCH":
                    why = f"it is encrypted, and the password of {PASSWORD_FILE} is wrong"
                raise UnusableCertificate(self.names.key, self.key, why) from error


# ---- expiry ----

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18  # tags of ASN.1 (X.509, RFC 5280)
_TIMES = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}


def expiry_of(pem: bytes) -> datetime:
    """Return when the first of the certificates in `pem` expires.

    The standard library reads this only from certificates of authorities. Packages that can would
    take 10 MB of memory in each service. Raises ValueError if `pem` has no certificate.
    """
    try:
        return min(_not_after(base64.b64decode(text)) for text in _PEM.findall(pem))
    except (IndexError, KeyError, binascii.Error) as error:
        raise ValueError("not a certificate in PEM") from error


def _not_after(der: bytes) -> datetime:
    """Return the end of the validity of a certificate."""
    _, at, _ = _element(der, 0)  # Certificate
    _, at, _ = _element(der, at)  # TBSCertificate
    tag, _, end = _element(der, at)
    fields = 3 if tag != _VERSION else 4  # version, serial number, signature, issuer
    for _ in range(fields):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)  # Validity
    _, _, at = _element(der, at)  # notBefore
    tag, at, end = _element(der, at)
    return datetime.strptime(der[at:end].decode("ascii"), _TIMES[tag]).replace(tzinfo=UTC)


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of the element at `at`, and the begin and the end of its content."""
    size, begin = der[at + 1], at + 2
    if size & 0x80:  # the low bits are the number of bytes of the size
        begin += size & 0x7F
        size = int.from_bytes(der[at + 2 : begin])
    return der[at], begin, begin + size


# ---- callers without a certificate ----

# Servers of earlier versions use gRPC for Python, which either requires a certificate of each
# caller or asks for none. So a caller without one presents this one, and a server that also serves
# such callers accepts it. Its key is public: it proves nothing, names no holder, and cannot sign
# certificates. It does not expire.
_ANYBODY_CERTIFICATE = (
    "MIIBjjCCATOgAwIBAgIBATAKBggqhkjOPQQDAjAyMTAwLgYDVQQDDCdhZXJvYmVlOiBhIGNhbGxlciB3aXRob3V0"
    "IGEgY2VydGlmaWNhdGUwIBcNMjAwMTAxMDAwMDAwWhgPOTk5OTEyMzEyMzU5NTlaMDIxMDAuBgNVBAMMJ2Flcm9i"
    "ZWU6IGEgY2FsbGVyIHdpdGhvdXQgYSBjZXJ0aWZpY2F0ZTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABGjBTkgY"
    "hxInqFSdTOmB+OXUt8UOBbybOTOeeObOmSle7dMQ+730/QXl0IwxsSPPjgvtHX2T5abJaF5vS0+oqGGjODA2MAwG"
    "A1UdEwEB/wQCMAAwDgYDVR0PAQH/BAQDAgeAMBYGA1UdJQEB/wQMMAoGCCsGAQUFBwMCMAoGCCqGSM49BAMCA0kA"
    "MEYCIQDEuohO1HOVKD9A39/WXPr+VaIIa+AfdnI6YzqDtLq3+AIhAId6xCFxZv0DpdgKR1Q0Vfh9fyO3v+5w6vmy"
    "c/dhKCcq"
)
_ANYBODY_KEY = (
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgrLxxfCkad/QaW7P2zHo+8Kq8Qj9ySZBOf5AH9H77"
    "NIOhRANCAARowU5IGIcSJ6hUnUzpgfjl1LfFDgW8mzkznnjmzpkpXu3TEPu99P0F5dCMMbEjz44L7R19k+WmyWhe"
    "b0tPqKhh"
)


def _armored(kind: str, text: str) -> bytes:
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----", ""]).encode()


ANYBODY_CERTIFICATE = _armored("CERTIFICATE", _ANYBODY_CERTIFICATE)
ANYBODY_KEY = _armored("PRIVATE KEY", _ANYBODY_KEY)


def _presented(pem: Pem) -> Pem:
    """Return what a caller with these files presents."""
    return (
        pem if pem.certificate else pem._replace(certificate=ANYBODY_CERTIFICATE, key=ANYBODY_KEY)
    )


@dataclass(slots=True)
class CallerCertificates:
    """The certificates with which one process calls name servers and brokers.

    `cluster` is the cluster name that the certificates of servers must contain; if it is empty,
    they must have the name of the host.
    """

    files: CertificateFiles
    cluster: str = ""
    _pem: Pem | None = field(default=None, repr=False)

    def pem(self) -> Pem:
        """Return the certificates. The first call reads them. Raises UnusableCertificate."""
        if self._pem is None:
            self._pem = _presented(self.files.load())
        return self._pem

    def server_name(self, path: str, broker_name: str = "") -> str:
        """Return the name that a server of the RPC at `path` must have, or "" for its host's.

        `broker_name` is the broker that the caller expects; if it is empty, any broker may answer.
        """
        if not self.cluster:
            return ""
        role = role_of(path)
        name = certificate_name(role, self.cluster)
        if role != BROKER or not broker_name or "@" in broker_name:  # no "@" in a DNS name
            return name
        return f"{broker_name}.{name}"

    def reload(self) -> bool:
        """Read the files again if they have changed. Return whether there are new certificates.

        Raises UnusableCertificate once for each change that cannot be used. The former certificates
        then stay.
        """
        changed = self.files.changed()
        if changed is None:
            return False
        self._pem = _presented(changed)
        return True


# gRPC reports this for a peer that closed a connection before its first answer.
_CLOSED = ("failed to connect", "Socket closed")
_MAY_NEED_TLS = (
    "it closed the connection: it may require TLS (tlsTrustCertPath), and a certificate of the "
    "caller (tlsCertPath, tlsKeyPath)"
)
_OTHER_NAME = (
    "its certificate has another name: check tlsVerify, tlsClusterName, its role and, at a broker, "
    "its brokerName"
)
# By a part of the description of gRPC or of Python's `ssl`; the first that is found counts.
_CAUSES: Mapping[str, str] = {
    "Peer name": _OTHER_NAME,
    "Hostname Verification Check failed": _OTHER_NAME,
    "Hostname mismatch": _OTHER_NAME,
    "IP address mismatch": _OTHER_NAME,
    "certificate has expired": "its certificate has expired: renew it",
    "certificate is not yet valid": "its certificate is not valid yet: check the clocks",
    "CERTIFICATE_VERIFY_FAILED": "no authority of tlsTrustCertPath has signed its certificate",
    "WRONG_VERSION_NUMBER": "it does not use TLS: remove tlsTrustCertPath, or set tlsServerMode = "
    "enforcing there",
    "CERTIFICATE_REQUIRED": "it requires a certificate: give tlsCertPath and tlsKeyPath",
    "UNKNOWN_CA": "it does not accept the certificate of this process: another authority signed "
    "it, or tlsCertPath and tlsKeyPath are missing",
}


def tls_cause(details: str) -> str:
    """Return the cause of a failed TLS connection in plain words, or "" for another failure.

    Args:
        details: gRPC's description of the failure.
    """
    found = next((cause for sign, cause in _CAUSES.items() if sign in details), "")
    if not found and all(sign in details for sign in _CLOSED):
        return _MAY_NEED_TLS
    return found
