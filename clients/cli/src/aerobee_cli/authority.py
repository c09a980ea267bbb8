"""Make and renew the certificates of a cluster, in one directory.

The directory has the authority (ca.crt, ca.key) and a pair of files for each certificate, such as
broker.crt and broker.key. No service needs ca.key. Keys are on the curve P-256. For each
certificate, a file of options of the service (broker.conf), or of variables for clients
(client.env), names these files.

A certificate of a service has the DNS names ROLE.CLUSTER.aerobee and NAME.ROLE.CLUSTER.aerobee, the
names and addresses of its hosts, and the URI aerobee://CLUSTER/ROLE/NAME. The role decides which
RPCs its holder may call. The name of a broker's certificate is its brokerName.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shlex
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aerobee_cli.errors import CommandError
from aerobee_cli.options import DEFAULT_CLUSTER
from aerobee_wire.certificates import certificate_name
from aerobee_wire.identity import (
    ADMIN,
    BROKER,
    CLIENT,
    CONSOLE,
    NAMESRV,
    PROXY,
    Identity,
    identity_of,
)

FIRST_ROLES = (NAMESRV, BROKER, PROXY, CONSOLE, ADMIN, CLIENT)  # `init` makes their certificates
SERVERS = (NAMESRV, BROKER, PROXY)  # roles with a port of their own
AUTHORITY_DAYS = 3650
DAYS = 90
RENEW_DAYS = 30  # certificates that expire within these days are renewed
CLOCK_SKEW = timedelta(days=1)
CA = "ca"

OTHERS = 0o077  # permission bits of group and others


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate of the directory.

    `role` is "ca" for the authority, and empty for a certificate that this command did not make.
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


def settings_of(directory: Path, holder: Identity, file: str = "") -> dict[str, str]:
    """Return the options of a process that uses a certificate, with absolute paths.

    `file` is the name of its files without an extension. By default, it is the role.
    """
    at, file = directory.absolute(), file or holder.role
    own = {"brokerName": holder.name} if holder.role == BROKER else {}
    if holder.role in SERVERS:
        own |= {"authenticationEnabled": "true", "tlsServerMode": "enforcing"}
    if holder.role == PROXY:
        own["authorizationEnabled"] = "true"
    elif holder.role in SERVERS:
        own["tlsServerNeedClientAuth"] = "optional"  # users need no certificate
    return {
        **own,
        "tlsCertPath": str(at / f"{file}.crt"),
        "tlsKeyPath": str(at / f"{file}.key"),
        "tlsTrustCertPath": str(at / "ca.crt"),
        "tlsClusterName": holder.cluster,
    }


def default_hosts() -> list[str]:
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname()]))


class Authority:
    """The certificates of a cluster in a directory.

    Args:
        directory: Where the files are.
        now: The present time.
        at: Where the files will be on the machine that uses them, for the files of options.
            Default: `directory`.
    """

    def __init__(self, directory: Path, now: datetime, at: Path | None = None) -> None:
        self._directory = directory
        self._now = now
        self._at = at or directory.absolute()

    def init(self, cluster: str, broker: str, hosts: Sequence[str], days: int) -> list[Issued]:
        """Make the directory, the authority, and a certificate for each role.

        `broker` is the brokerName for which the broker's certificate is.

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
            inside = Authority(made, self._now, self._at)
            inside._make_authority(cluster)
            issued = inside._issue_missing(broker, hosts, days)
            made.rename(directory)
        return issued

    def _issue_missing(self, broker: str, hosts: Sequence[str], days: int) -> list[Issued]:
        """Make the certificates that `init` makes and that are missing here."""
        return [
            self._issue(role, broker if role == BROKER else role, hosts, days, file=role)
            for role in FIRST_ROLES
            if not (self._directory / f"{role}.crt").exists()
        ]

    def keep(self, cluster: str, broker: str, hosts: Sequence[str], days: int) -> list[Issued]:
        """Do what `init` does, or bring the certificates up to date if there is an authority.

        Certificates that expire soon are renewed, and missing ones are made. The broker's gets the
        name `broker`. Several processes may call this at once. Return the new certificates. Raises
        CommandError if the authority is of another cluster.
        """
        path = self._directory / "ca.crt"
        if not path.exists():
            try:
                return self.init(cluster, broker, hosts, days)
            except (OSError, CommandError):
                if not path.exists():  # else another process was faster, at any step of init
                    raise
        if (found := _cluster_of(self._read(path))) != cluster:
            raise CommandError(f"{self._directory} has the authority of cluster {found!r}: name it")
        self._check_private()
        made = self._issue_missing(broker, hosts, days)
        return [*made, *self._rename_broker(broker, days), *self.renew(RENEW_DAYS, days)]

    def _rename_broker(self, broker: str, days: int) -> list[Issued]:
        """Sign the certificate of the broker again if it has another name.

        A broker can register with the name of its certificate only, and brokerName may change.
        """
        path = self._directory / f"{BROKER}.crt"
        certificate = self._read(path)
        holder = identity_of(_uris(certificate))
        if holder is None or holder.name == broker:
            return []
        hosts = [
            str(each.value)
            for each in _alternative_names(certificate)
            if isinstance(each, x509.DNSName | x509.IPAddress)
            and not str(each.value).endswith(f".{holder.cluster}.aerobee")
        ]
        holder = _holder(self._read(self._directory / "ca.crt"), BROKER, broker)
        # The certificate is last: if it has the name, then the options have it too.
        self._write_options(BROKER, settings_of(self._at, holder), BROKER)
        return [self._sign_again(path, certificate, broker, _names(holder, hosts), days)]

    def issue(self, role: str, name: str, hosts: Sequence[str], days: int) -> Issued:
        """Make a key, a certificate and a file of options for a process. They have its name.

        Raises CommandError if a file of that name exists.
        """
        self._check_private()
        self._check_absent(name)
        return self._issue(role, name, hosts, days, file=name)

    def _issue(self, role: str, name: str, hosts: Sequence[str], days: int, *, file: str) -> Issued:
        """Make the files of a certificate.

        The certificate is last: if it exists, then its other files exist. A key without a
        certificate is used, because the process that made it was interrupted, or is still running.
        """
        signer = self._authority()
        holder = _holder(signer[0], role, name)
        self._write(f"{file}.key", _private(_new_key()), 0o600, keep=True)
        key = self._read_key(self._directory / f"{file}.key")
        self._write_options(role, settings_of(self._at, holder, file), file)
        certificate = self._signed(name, key.public_key(), _names(holder, hosts), days, signer)
        self._write(f"{file}.crt", _public(certificate), 0o644)
        return self._issued(f"{file}.crt", certificate)

    def renew(self, within_days: int, days: int) -> list[Issued]:
        """Sign those certificates again that expire soon. Their keys and names stay as they are.

        Leave out certificates that this command did not make.
        """
        self._check_private()
        self._authority()
        renewed = []
        for path in self._files():
            certificate = self._read(path)
            issued = self._issued(path.name, certificate)
            if not issued.role or issued.expires_in_days > within_days:
                continue
            name, names = _common_name(certificate), list(_alternative_names(certificate))
            renewed.append(self._sign_again(path, certificate, name, names, days))
        return renewed

    def _sign_again(
        self,
        path: Path,
        certificate: x509.Certificate,
        name: str,
        names: Sequence[x509.GeneralName],
        days: int,
    ) -> Issued:
        """Replace a certificate by one for the same key."""
        key = self._key_of(path, certificate)
        fresh = self._signed(name, key, names, days, self._authority())
        self._write(path.name, _public(fresh), 0o644)
        return self._issued(path.name, fresh)

    def list(self) -> list[Issued]:
        """Return the certificates of the directory, with the authority first."""
        authority = self._read(self._directory / "ca.crt")
        found = [(path.name, self._read(path)) for path in self._files()]
        return [self._issued(*each) for each in (("ca.crt", authority), *found)]

    def _write_options(self, role: str, settings: dict[str, str], file: str) -> None:
        """Write the options of a service, or the variables of a client."""
        if role in SERVERS:
            self._write(f"{file}.conf", text_of(settings), 0o644)
        else:
            settings = {f"export {variable_of(k)}": shlex.quote(v) for k, v in settings.items()}
            self._write(f"{file}.env", text_of(settings), 0o644)

    # ---- certificates ----

    def _make_authority(self, cluster: str) -> None:
        key = _new_key()
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
            .not_valid_after(self._now + timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
        )

    def _key_of(self, path: Path, certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
        key = certificate.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise CommandError(f"{path} is not a certificate of `aerobee certs`")
        return key

    def _authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        path = self._directory / "ca.key"
        key = self._read_key(path)
        certificate = self._read(self._directory / "ca.crt")
        if certificate.public_key() != key.public_key():
            raise CommandError(f"{path} is not the key of {self._directory / 'ca.crt'}")
        return certificate, key

    def _issued(self, file: str, certificate: x509.Certificate) -> Issued:
        names = tuple(str(each.value) for each in _alternative_names(certificate))
        holder = identity_of(_uris(certificate))
        left = certificate.not_valid_after_utc - self._now
        return Issued(
            file,
            CA if file == f"{CA}.crt" else holder.role if holder else "",
            holder.name if holder else _common_name(certificate),
            holder.cluster if holder else _cluster_of(certificate),
            certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
            left // timedelta(days=1),
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
        for suffix in ("key", "crt", "conf", "env"):
            path = self._directory / f"{name}.{suffix}"
            if path.exists():
                raise CommandError(
                    f"{path} exists and is not overwritten: give another --name, or remove it"
                )

    def _write(self, name: str, content: bytes, mode: int, *, keep: bool = False) -> None:
        """Write a whole file, or none. With `keep`, a file of that name stays as it is."""
        path = self._directory / name
        descriptor, partial = tempfile.mkstemp(prefix=".new-", dir=self._directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(partial).chmod(mode)
            if keep:
                with contextlib.suppress(FileExistsError):
                    path.hardlink_to(partial)
            else:
                Path(partial).replace(path)
        finally:
            Path(partial).unlink(missing_ok=True)

    def _read_key(self, path: Path) -> ec.EllipticCurvePrivateKey:
        try:
            key = serialization.load_pem_private_key(self._bytes(path), None)
        except (ValueError, TypeError):  # TypeError: it has a password
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CommandError(f"{path} is not a key of `aerobee certs`: restore it, or remove it")
        return key

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


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


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


def _holder(authority: x509.Certificate, role: str, name: str) -> Identity:
    """Return the holder of a new certificate. Raises CommandError if services cannot read it."""
    holder = Identity(_cluster_of(authority), role, name)
    if identity_of([str(holder)]) != holder:
        raise CommandError(
            f"the name {name!r} cannot be in a certificate: write letters, digits, and - . _ @ "
            "after the first"
        )
    return holder


def _names(holder: Identity, hosts: Iterable[str]) -> list[x509.GeneralName]:
    """Return the names of a certificate. Certificates of clients have them too."""
    role = certificate_name(holder.role, holder.cluster)
    own = [] if "@" in holder.name else [x509.DNSName(f"{holder.name}.{role}")]  # not in DNS
    return [
        x509.DNSName(role),
        *own,
        *map(_host, dict.fromkeys(hosts)),
        x509.UniformResourceIdentifier(str(holder)),
    ]


def _uris(certificate: x509.Certificate) -> list[str]:
    return [
        each.value
        for each in _alternative_names(certificate)
        if isinstance(each, x509.UniformResourceIdentifier)
    ]


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


# ---- closed ports ----
#
# Close the ports of local services with certificates that are made for them.


def closed_ports(directory: Path, broker: str) -> list[str]:
    """Return the settings of a suite with certificates in `directory`.

    Certificates that are missing are made. `broker` is the brokerName. Raises CommandError.
    """
    Authority(directory, datetime.now(UTC)).keep(DEFAULT_CLUSTER, broker, default_hosts(), DAYS)
    return [
        f"{role}.{key}={value}"
        for role in SERVERS
        for key, value in settings_of(
            directory, Identity(DEFAULT_CLUSTER, role, broker if role == BROKER else role)
        ).items()
    ]


def variables_of_admin(directory: Path) -> dict[str, str]:
    """Return the environment of clients with the certificate of the administrator."""
    settings = settings_of(directory, Identity(DEFAULT_CLUSTER, ADMIN, ADMIN))
    return {variable_of(key): value for key, value in settings.items()}
