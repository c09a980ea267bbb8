"""Make and renew the certificates of a cluster, in one directory.

The directory has the authority (ca.crt, ca.key) and a pair of files for each certificate, such as
broker.crt and broker.key. No service needs ca.key. Keys are on the curve P-256. A file of options
for each service, and of variables for clients, names the certificates.

A certificate of a service has the DNS names ROLE.CLUSTER.aerobee and NAME.ROLE.CLUSTER.aerobee, the
names and addresses of its hosts, and the URI aerobee://CLUSTER/ROLE/NAME.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import shlex
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aerobee_cli.errors import CommandError
from aerobee_wire.certificates import BROKER, NAMESRV, PROXY, certificate_name

ADMIN = "admin"
ROLES = (NAMESRV, BROKER, PROXY, ADMIN)
AUTHORITY_DAYS = 3650
DAYS = 90
RENEW_DAYS = 30  # certificates that expire within these days are renewed
CLOCK_SKEW = datetime.timedelta(days=1)
CA = "ca"
URI_SCHEME = "aerobee"

OTHERS = 0o077  # permission bits of group and others


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate of the directory.

    `expires_in_days` is negative if the certificate has expired. `names` are its DNS names, IP
    addresses and URI.
    """

    file: str
    role: str
    name: str
    cluster: str
    not_after: str
    expires_in_days: int
    names: tuple[str, ...]


def variable_of(key: str) -> str:
    """Return the environment variable of an option: tlsCertPath → AEROBEE_TLS_CERT_PATH."""
    return "AEROBEE_" + re.sub("([A-Z])", r"_\1", key).upper()


def text_of(settings: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in settings.items()).encode()


def settings_of(directory: Path, role: str, cluster: str) -> dict[str, str]:
    """Return the options of a process that uses the certificate of a role, with absolute paths."""
    at = directory.absolute()
    mode = {} if role == ADMIN else {"tlsServerMode": "enforcing"}
    return {
        **mode,
        "tlsCertPath": str(at / f"{role}.crt"),
        "tlsKeyPath": str(at / f"{role}.key"),
        "tlsTrustCertPath": str(at / "ca.crt"),
        "tlsClusterName": cluster,
    }


def default_hosts() -> list[str]:
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname()]))


class Authority:
    """The certificates of a cluster in a directory. `now` is the present time."""

    def __init__(self, directory: Path, now: datetime.datetime) -> None:
        self._directory = directory
        self._now = now

    def init(self, cluster: str, hosts: Sequence[str], days: int) -> list[Issued]:
        """Make the directory, the authority, and a certificate for each role.

        The directory is made beside its place and then renamed, so that it is never there in part.
        Raises CommandError if the directory is not empty, or if others may read it.
        """
        directory = self._directory.absolute()
        if directory.exists():
            self._check_private()
            if any(directory.iterdir()):
                raise CommandError(
                    f"{directory} is not empty: name another directory, or use `aerobee certs "
                    "issue` or `aerobee certs renew`"
                )
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".certs-", dir=directory.parent) as scratch:
            made = Path(scratch, "made")
            made.mkdir(mode=0o700)
            issued = Authority(made, self._now)._fill(directory, cluster, hosts, days)
            made.rename(directory)
        return issued

    def _fill(self, directory: Path, cluster: str, hosts: Sequence[str], days: int) -> list[Issued]:
        """Make the files of `directory` in this one."""
        self._make_authority(cluster)
        issued = [self.issue(role, role, hosts, days) for role in ROLES]
        for role in ROLES:
            self._write_options(role, settings_of(directory, role, cluster))
        return issued

    def keep(self, cluster: str, hosts: Sequence[str], days: int) -> list[Issued]:
        """Do what `init` does, or renew the certificates that expire soon if there is an authority.

        Several processes may call this at once. Return the new certificates. Raises CommandError if
        the authority is of another cluster.
        """
        path = self._directory / "ca.crt"
        if not path.exists():
            try:
                return self.init(cluster, hosts, days)
            except OSError:
                if not path.exists():  # else another process has been faster
                    raise
        if (found := _cluster_of(self._read(path))) != cluster:
            raise CommandError(f"{self._directory} has the authority of cluster {found!r}: name it")
        return self.renew(RENEW_DAYS, days)

    def issue(self, role: str, name: str, hosts: Sequence[str], days: int) -> Issued:
        """Make a key and a certificate for a process. Their files have its name.

        Raises CommandError if a file of that name exists.
        """
        self._check_private()
        signer = self._authority()
        self._check_absent(name)
        key = ec.generate_private_key(ec.SECP256R1())
        cluster = _cluster_of(signer[0])
        names: list[x509.GeneralName] = [
            x509.DNSName(certificate_name(role, cluster)),
            x509.DNSName(f"{name}.{certificate_name(role, cluster)}"),
            *map(_host, dict.fromkeys(hosts)),
            x509.UniformResourceIdentifier(f"{URI_SCHEME}://{cluster}/{role}/{name}"),
        ]
        certificate = self._signed(name, key.public_key(), names, days, signer)
        self._write(f"{name}.key", _private(key), 0o600)
        self._write(f"{name}.crt", _public(certificate), 0o644)
        return self._issued(f"{name}.crt", certificate)

    def renew(self, within_days: int, days: int) -> list[Issued]:
        """Sign those certificates again that expire soon. Their keys and names stay as they are.

        Leave out certificates that this command did not make.
        """
        self._check_private()
        signer = self._authority()
        renewed = []
        for path in self._files():
            certificate = self._read(path)
            issued = self._issued(path.name, certificate)
            if issued.role == CA or issued.expires_in_days > within_days:
                continue
            names = list(_alternative_names(certificate))
            fresh = self._signed(
                _common_name(certificate),
                self._key_of(path, certificate),
                names,
                days,
                signer,
            )
            partial = path.with_suffix(f".new-{os.getpid()}")
            self._write(partial.name, _public(fresh), 0o644)
            partial.replace(path)
            renewed.append(self._issued(path.name, fresh))
        return renewed

    def list(self) -> list[Issued]:
        """Return the certificates of the directory, with the authority first."""
        authority = self._read(self._directory / "ca.crt")
        found = [(path.name, self._read(path)) for path in self._files()]
        return [self._issued(*each) for each in (("ca.crt", authority), *found)]

    def _write_options(self, role: str, settings: dict[str, str]) -> None:
        """Write the options of a service, or the variables of a client."""
        if role == ADMIN:
            settings = {f"export {variable_of(k)}": shlex.quote(v) for k, v in settings.items()}
            self._write("client.env", text_of(settings), 0o644)
        else:
            self._write(f"{role}.conf", text_of(settings), 0o644)

    # ---- certificates ----

    def _make_authority(self, cluster: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
                x509.NameAttribute(NameOID.COMMON_NAME, f"Aerobee authority of {cluster}"),
            ]
        )
        certificate = (
            self._builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
            .add_extension(_usage(signs=True), True)
            .sign(key, hashes.SHA256())
        )
        self._write("ca.key", _private(key), 0o600)
        self._write("ca.crt", _public(certificate), 0o644)

    def _signed(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        names: Sequence[x509.GeneralName],
        days: int,
        signer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        authority, authority_key = signer
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        return (
            self._builder(subject, authority.subject, key, days)
            .add_extension(x509.SubjectAlternativeName(names), False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(_usage(signs=False), True)
            .add_extension(x509.ExtendedKeyUsage(both), False)
            .add_extension(issuer_id, False)
            .sign(authority_key, hashes.SHA256())
        )

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - CLOCK_SKEW)
            .not_valid_after(self._now + datetime.timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        )

    def _key_of(self, path: Path, certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise CommandError(f"{path} is not a certificate of `aerobee certs`")
        return key

    def _authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        path = self._directory / "ca.key"
        key = serialization.load_pem_private_key(self._bytes(path), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CommandError(f"{path} is not a key of `aerobee certs init`")
        certificate = self._read(self._directory / "ca.crt")
        if certificate.public_key() != key.public_key():
            raise CommandError(f"{path} is not the key of {self._directory / 'ca.crt'}")
        return certificate, key

    def _issued(self, file: str, certificate: x509.Certificate) -> Issued:
        names = tuple(str(each.value) for each in _alternative_names(certificate))
        uri = next((each for each in names if each.startswith(f"{URI_SCHEME}://")), "")
        cluster, role, name = uri.removeprefix(f"{URI_SCHEME}://").split("/") if uri else ("",) * 3
        left = certificate.not_valid_after_utc - self._now
        return Issued(
            file,
            role or CA,
            name or _common_name(certificate),
            cluster or _cluster_of(certificate),
            certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
            left // datetime.timedelta(days=1),
            names,
        )

    # ---- files ----

    def _files(self) -> Iterable[Path]:
        return (path for path in sorted(self._directory.glob("*.crt")) if path.stem != CA)

    def _check_private(self) -> None:
        if not self._directory.is_dir():
            raise CommandError(
                f"{self._directory} is not a directory: use `aerobee certs init` first"
            )
        if self._directory.stat().st_mode & OTHERS:
            raise CommandError(
                f"others may read {self._directory}, where private keys are: chmod 700 it"
            )

    def _check_absent(self, name: str) -> None:
        for suffix in ("key", "crt"):
            path = self._directory / f"{name}.{suffix}"
            if path.exists():
                raise CommandError(
                    f"{path} exists and is not overwritten: give another --name, or remove it"
                )

    def _write(self, name: str, content: bytes, mode: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(self._directory / name, flags, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path) -> x509.Certificate:
        try:
            return x509.load_pem_x509_certificate(self._bytes(path))
        except ValueError:
            raise CommandError(f"{path} is not a certificate in PEM") from None

    def _bytes(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise CommandError(f"{path} is missing: `aerobee certs init` makes it") from None


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _alternative_names(certificate: x509.Certificate) -> Iterable[x509.GeneralName]:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()


def _common_name(certificate: x509.Certificate) -> str:
    return _attribute(certificate, NameOID.COMMON_NAME)


def _cluster_of(authority: x509.Certificate) -> str:
    return _attribute(authority, NameOID.ORGANIZATION_NAME)


def _attribute(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    values = certificate.subject.get_attributes_for_oid(oid)
    return str(values[0].value) if values else ""


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _public(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
