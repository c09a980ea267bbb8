"""Use TLS between services: options, credentials of a server, and certificates of channels.

The port of a proxy has a certificate for SDKs (`tls_port`). The ports of name servers and brokers
check the certificates of their callers, too. While a cluster is closed, they also accept plaintext.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal

import structlog
from pydantic import Field, SecretStr, field_validator

from aerobee_chassis.clock import Clock
from aerobee_chassis.config import MIB, Options, read_secret
from aerobee_chassis.errors import CertificateError, ConfigError
from aerobee_chassis.logs import SECRETS
from aerobee_chassis.rpc.access import Access, Policy
from aerobee_chassis.rpc.audit import Audit
from aerobee_chassis.rpc.audit_log import AuditLog
from aerobee_chassis.rpc.guesses import Guesses
from aerobee_chassis.rpc.transport import ChannelTls
from aerobee_http2.tls import server_context
from aerobee_wire.access.signature import Signatures
from aerobee_wire.access.users import User
from aerobee_wire.certificates import (
    ANYBODY_CERTIFICATE,
    HOST,
    NAME,
    CallerCertificates,
    CertificateFiles,
    Pem,
    UnusableCertificate,
    expiry_of,
    needs_no_tls,
)

WARNING_DAYS = 14  # before a certificate expires
DAY_S = 86_400.0
# Whether a port serves callers without a certificate ("none", "optional"), and checks those of
# others ("optional", "require").
ClientAuth = Literal["none", "optional", "require"]
MAX_AGE_MS = 3_600_000  # of connections of callers with certificates


class PeerTlsOptions(Options):
    """Options of a service that calls other services with TLS."""

    # ---- TLS to other services ---- (if an authority is given)
    tls_trust_cert_path: str = ""
    tls_cert_path: str = ""
    tls_key_path: str = ""
    # The password of an encrypted key. The file is read whenever the key is: both may change.
    tls_key_password: SecretStr = SecretStr("")
    tls_key_password_file: str = ""
    # Not in RocketMQ: whether the certificate of another service must have the name of its role in
    # this cluster, or the name of its host.
    tls_verify: Literal["name", "host"] = "name"
    tls_cluster_name: str = "DefaultCluster"
    # Not in RocketMQ: false calls other services in plaintext although there is an authority, while
    # not all of their ports accept TLS.
    tls_calls: bool = True

    @property
    def verifies_hosts(self) -> bool:
        """Return whether a certificate must have the host name that the user gave."""
        return bool(self.tls_trust_cert_path) and self.tls_verify == HOST

    def peer_tls(self, broker_name: str = "") -> PeerTls | None:
        """Return the certificates for calls to other services, or None for plaintext.

        If `broker_name` is given, brokers that are called must have this name.
        """
        if not self.tls_trust_cert_path or not self.tls_calls:
            return None
        return PeerTls(
            self._certificate_files(),
            self.tls_cluster_name if self.tls_verify == NAME else "",
            broker_name,
        )

    def expiries(self) -> Mapping[str, datetime]:
        """Return when the first certificate of each file expires, by the keys of their options.

        A file that cannot be read is left out: those that use it log this.
        """
        found = {}
        given = {"tlsCertPath": self.tls_cert_path, "tlsTrustCertPath": self.tls_trust_cert_path}
        for key, path in given.items():
            if path:
                with suppress(OSError, ValueError):
                    found[key] = expiry_of(Path(path).read_bytes())
        return found

    def _certificate_files(self) -> CertificateFiles:
        return CertificateFiles(
            self.tls_trust_cert_path,
            self.tls_cert_path,
            self.tls_key_path,
            password=self._key_password,
        )

    def _key_password(self) -> str:
        """Return the password of the key. Raises OSError."""
        if not self.tls_key_password_file:
            return self.tls_key_password.get_secret_value()
        found = read_secret(self.tls_key_password_file)
        SECRETS.hide("tlsKeyPassword", [found])
        return found

    @field_validator("tls_cluster_name")
    @classmethod
    def _dns_labels(cls, value: str) -> str:
        check_cluster_name(value)
        return value

    def conflicts(self) -> Iterator[ConfigError]:
        yield from super().conflicts()
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            problem = "tlsCertPath and tlsKeyPath belong together: give both or none"
            yield ConfigError(problem, "tlsKeyPath" if self.tls_cert_path else "tlsCertPath")


class PortOptions(PeerTlsOptions):
    """Options of a service whose port is closed, or that only this machine can reach.

    On another address than loopback, a service with an open port does not start without `insecure`.
    """

    former_keys: ClassVar[frozenset[str]] = frozenset({"grpcTransport", "grpc_transport"})

    # Not in RocketMQ: start although other machines may reach the port, and it serves each caller.
    insecure: bool = False

    # Not in RocketMQ: the file with a line for each change and each rejected call, and the files
    # that are kept after they are full. Empty: there is none.
    audit_log_path: str = ""
    audit_log_max_bytes: int = Field(default=64 * MIB, ge=MIB // 16)
    audit_log_max_files: int = Field(default=10, ge=1)
    # Not in RocketMQ: whether calls that read bodies of messages have lines, too.
    audit_reads: bool = False

    # The options that close the port, for the error.
    closing_options: ClassVar[str]

    def audit(self, clock: Clock) -> Audit | None:
        """Return the audit log of this process, or None if there is none."""
        if not self.audit_log_path:
            return None
        log = AuditLog(
            Path(self.audit_log_path).expanduser(),
            max_bytes=self.audit_log_max_bytes,
            keep=self.audit_log_max_files,
        )
        return Audit(log, self.tls_cluster_name, clock.real, with_reads=self.audit_reads)

    @property
    def is_closed(self) -> bool:
        """Return whether the port serves only callers that prove who they are."""
        raise NotImplementedError

    @property
    def is_insecure(self) -> bool:
        return not self.is_closed and not needs_no_tls(self.bind_address)

    def conflicts(self) -> Iterator[ConfigError]:
        yield from super().conflicts()
        if self.is_insecure and not self.insecure:
            yield ConfigError(
                f"bindAddress={self.bind_address} may be reached from other machines, and this "
                "port would serve each caller: make certificates with `aerobee certs init`, and "
                f"start with its file of options; or use certificates of your own: set "
                f"{self.closing_options}; or start it open, with --insecure "
                "(AEROBEE_INSECURE=true)",
                "bindAddress",
            )


class ServerTlsOptions(PortOptions):
    """Options of a service whose own port uses TLS."""

    # "permissive" accepts TLS and plaintext, if there is a certificate.
    tls_server_mode: Literal["disabled", "permissive", "enforcing"] = "disabled"
    tls_server_need_client_auth: ClientAuth = "require"
    # Whether callers may sign as users, whose policies then decide.
    authentication_enabled: bool = False
    authorization_enabled: bool = False  # policies decide in any case; RocketMQ has two options
    # The first user, SUPER: {"username": …, "password": …}, or @ and the path of a file with it.
    init_authentication_user: SecretStr = SecretStr("")
    init_authentication_user_file: str = ""
    # Not in RocketMQ: check callers, but log calls instead of rejecting them.
    access_observe_only: bool = False

    def server_tls(self) -> ServerTls | None:
        """Return the certificates for the port of the service, or None for plaintext."""
        if not self._accepts_tls:
            return None
        return ServerTls(
            self._certificate_files(),
            self.tls_server_need_client_auth,
            accepts_plaintext=self._is_permissive,
        )

    def access(
        self,
        policy: Policy,
        user_of: Callable[[str], User | None],
        clock: Clock,
        audit: Audit | None = None,
    ) -> Access:
        """Return the check of callers. It is enforced if the port checks their certificates.

        `user_of` returns the user of a name, for calls that users sign. `audit` gets a line for
        rejected calls.
        """
        signatures = None
        if self.authentication_enabled:
            signatures = Signatures(user_of, clock.real.now_ms, clock.real.monotonic_ms)
        return Access(
            policy,
            enforced=self.checks_callers,
            observe_only=self.access_observe_only,
            reports_plaintext=self._is_permissive,
            signatures=signatures,
            guesses=Guesses(clock),
            audit=audit,
        )

    closing_options: ClassVar[str] = (
        "tlsServerMode=enforcing, tlsServerNeedClientAuth=require, tlsCertPath, tlsKeyPath and "
        "tlsTrustCertPath"
    )

    @property
    def _is_permissive(self) -> bool:
        return self.tls_server_mode == "permissive" and bool(self.tls_cert_path)

    @property
    def _accepts_tls(self) -> bool:
        return self.tls_server_mode == "enforcing" or self._is_permissive

    @property
    def checks_callers(self) -> bool:
        """Return whether callers with TLS prove who they are."""
        return self._accepts_tls and self.tls_server_need_client_auth != "none"

    @property
    def is_closed(self) -> bool:
        # Calls that are only observed are made. Then a caller must at least have a certificate.
        serves_all = self.access_observe_only and (
            self._is_permissive or self.tls_server_need_client_auth == "optional"
        )
        return self.checks_callers and not serves_all

    def conflicts(self) -> Iterator[ConfigError]:
        yield from super().conflicts()
        if self.authorization_enabled and not self.authentication_enabled:
            problem = "authorizationEnabled needs authenticationEnabled=true"
            yield ConfigError(problem, "authenticationEnabled")
        if self.authentication_enabled and not self.checks_callers:
            yield ConfigError(
                "authenticationEnabled=true needs a port that checks certificates, because "
                "brokers and proxies prove their roles by them: set tlsServerMode=enforcing and "
                "tlsServerNeedClientAuth=optional, or require",
                "authenticationEnabled",
            )
        if not self._accepts_tls:
            if self.tls_trust_cert_path:
                yield ConfigError(
                    "tlsTrustCertPath makes this service call others with TLS, but its own port "
                    "would be plaintext: set tlsServerMode=enforcing, or permissive with "
                    "tlsCertPath, or remove it (AEROBEE_TLS_TRUST_CERT_PATH)",
                    "tlsServerMode",
                )
            return
        if not self.tls_cert_path:
            yield ConfigError(
                "tlsServerMode=enforcing needs tlsCertPath and tlsKeyPath; `aerobee certs init` "
                "makes certificates",
                "tlsCertPath",
            )
        if self.checks_callers and not self.tls_trust_cert_path:
            yield ConfigError(
                f"with tlsServerMode={self.tls_server_mode}, the certificates of callers are "
                "checked: give tlsTrustCertPath, the authority that signs them, or "
                "tlsServerNeedClientAuth=none",
                "tlsTrustCertPath",
            )


def check_cluster_name(value: str) -> None:
    """Raise ValueError if a cluster name cannot be a part of a DNS name."""
    if not (value.isascii() and value.replace("-", "").replace(".", "").isalnum()):
        raise ValueError("write letters, digits, - and ., because it is part of a DNS name")


class PeerTls:
    """Provide the certificates for calls to other services (`CallerCertificates`).

    `broker_name` is the name that each broker must have; if it is empty, each channel has its own.
    """

    def __init__(self, files: CertificateFiles, cluster: str, broker_name: str = "") -> None:
        self._certificates = CallerCertificates(files, cluster)
        self._broker_name = broker_name

    def of(self, path: str, broker_name: str = "") -> ChannelTls:
        """Return the certificates for a channel that calls the RPC at `path`.

        Raises CertificateError, which names the file.
        """
        pem = usable(self._certificates.pem)
        name = self._certificates.server_name(path, broker_name or self._broker_name)
        return ChannelTls(*pem, name)

    def reload(self) -> bool:
        """Read the files again if they have changed. Return whether there are new certificates.

        If the new files cannot be used, log an error and keep the former certificates.
        """
        try:
            changed = self._certificates.reload()
        except UnusableCertificate as error:
            log_unusable(error)
            return False
        if changed:
            structlog.get_logger().info("caller_certificates_reloaded")
        return changed


class ServerTls:
    """Provide the certificates of a port, at each handshake.

    Unless `client_auth` is "none", an authority of the files must have signed the certificate of
    each caller. If it is "optional", callers without a certificate are served, too. If
    `accepts_plaintext`, the port also serves callers without TLS.
    """

    def __init__(
        self,
        files: CertificateFiles,
        client_auth: ClientAuth,
        *,
        accepts_plaintext: bool = False,
    ) -> None:
        self.accepts_plaintext = accepts_plaintext
        self._files = files
        self._client_auth = client_auth
        self._context: ssl.SSLContext | None = None

    @property
    def max_age_ms(self) -> int | None:
        """Return how long a connection gets new calls. None: without a limit.

        The certificate of a caller is checked at the handshake only, and it may expire.
        """
        return None if self._client_auth == "none" else MAX_AGE_MS

    async def load(self) -> None:
        """Load the files. Raises CertificateError."""
        if self._context is None:
            self._context = self._context_of(usable(self._files.load))

    async def context(self) -> ssl.SSLContext:
        """Return the context for the next handshake. Raises CertificateError for the first one.

        It has new certificates if the files have changed. If these cannot be used, log an error and
        keep the former ones.
        """
        await self.load()
        assert self._context is not None
        try:
            pem = self._files.changed()
        except UnusableCertificate as error:
            log_unusable(error)
            return self._context
        if pem is not None:
            self._context = self._context_of(pem)
            structlog.get_logger().info(
                "certificates_reloaded", certificate=self._files.certificate
            )
        return self._context

    def _context_of(self, pem: Pem) -> ssl.SSLContext:
        is_checked = self._client_auth != "none"
        return server_context(pem._replace(authorities=self._authorities(pem)), is_checked)

    def _authorities(self, pem: Pem) -> bytes:
        """Return the authorities that may have signed the certificate of a caller."""
        if self._client_auth == "optional":  # callers without a certificate present this one
            return pem.authorities + b"\n" + ANYBODY_CERTIFICATE
        return pem.authorities


def usable(load: Callable[[], Pem]) -> Pem:
    """Return what `load` returns. Raises CertificateError, which names the file."""
    try:
        return load()
    except UnusableCertificate as error:
        raise CertificateError(str(error), error.path) from error


def warn_of_expiry(options: Options, now: datetime) -> None:
    """Log each certificate that expires within WARNING_DAYS, or has expired (negative days)."""
    for option, expires in options.expiries().items():
        days_left = (expires - now).days
        if days_left < WARNING_DAYS:
            structlog.get_logger().warning(
                "certificate_expires",
                option=option,
                expires=expires.isoformat(),
                days_left=days_left,
                hint="renew it, for example with `aerobee certs renew`",
            )


async def watch_expiry(options: Options, clock: Clock) -> None:
    """Log certificates that expire soon, now and each day."""
    while True:
        warn_of_expiry(options, datetime.fromtimestamp(clock.real.now_ms() / 1000, UTC))
        await asyncio.sleep(DAY_S)


def log_unusable(error: UnusableCertificate) -> None:
    structlog.get_logger().error("certificates_unusable", reason=str(error), about=error.path)
