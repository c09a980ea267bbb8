"""Describe TLS connections to name servers and brokers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aerobee_client.runtime.kinds import checked_class
from aerobee_wire.certificates import (
    HOST,
    NAME,
    CallerCertificates,
    CertificateFiles,
    OptionNames,
    Pem,
    UnusableCertificate,
)
from aerobee_wire.status import Code, MqError

_VARIABLES = "AEROBEE_TLS_TRUST_CERT_PATH", "AEROBEE_TLS_CERT_PATH", "AEROBEE_TLS_KEY_PATH"
_VERIFY, _CLUSTER = "AEROBEE_TLS_VERIFY", "AEROBEE_TLS_CLUSTER_NAME"


@checked_class
@dataclass(frozen=True, slots=True)
class Tls:
    """The certificates with which a client connects to name servers and brokers.

    A client without this option reads it from the environment (`from_environment`). The files are
    read again when they change: later connections use the new certificates.

    Args:
        ca: The path of the authority that signed the certificates of the servers, in PEM.
        certificate: The path of the certificate that the client presents, in PEM. Servers require
            it unless their tlsServerNeedClientAuth is none.
        key: The path of the key of `certificate`, in PEM and without a password.
        verify: "name": the certificate of a server must have the name of its role in `cluster`, as
            those of `aerobee certs` have. "host": it must have the name of the host.
        cluster: The cluster name in the certificates, for `verify="name"`.

    Raises:
        MqError: INVALID_PARAMETER if `ca` is empty, if only one of `certificate` and `key` is
            given, or for another value of `verify`.

    Example:
        tls = Tls("ca.crt", certificate="client.crt", key="client.key")
        with Producer(namesrv="queue.example.org:9876", tls=tls) as producer:
            producer.send(Message("orders", b"42 apples"))
    """

    ca: str | Path
    certificate: str | Path = ""
    key: str | Path = ""
    verify: Literal["name", "host"] = "name"
    cluster: str = "DefaultCluster"

    def __post_init__(self) -> None:
        if not str(self.ca):
            raise _invalid("ca is empty: give the authority of the servers' certificates")
        if bool(str(self.certificate)) != bool(str(self.key)):
            raise _invalid("certificate and key belong together: give both or none")
        if self.verify not in (NAME, HOST):
            raise _invalid(f'verify={self.verify!r}: write "name" or "host"')

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Tls | None:
        """Read the options from the variables that the services also read.

        They are AEROBEE_TLS_TRUST_CERT_PATH, AEROBEE_TLS_CERT_PATH, AEROBEE_TLS_KEY_PATH,
        AEROBEE_TLS_VERIFY and AEROBEE_TLS_CLUSTER_NAME.

        Args:
            environ: The environment.

        Returns:
            The options, or None if AEROBEE_TLS_TRUST_CERT_PATH is not set.

        Raises:
            MqError: INVALID_PARAMETER, see the class.
        """
        ca, certificate, key = (environ.get(variable, "") for variable in _VARIABLES)
        if not ca:
            return None
        verify = environ.get(_VERIFY, "") or NAME
        cluster = environ.get(_CLUSTER, "") or "DefaultCluster"
        return cls(ca, certificate, key, verify, cluster)  # type: ignore[arg-type]

    def files(self) -> CertificateFiles:
        names = OptionNames("ca", "certificate", "key")
        return CertificateFiles(str(self.ca), str(self.certificate), str(self.key), names)


def read(certificates: CallerCertificates) -> Pem:
    """Return the certificates of a client. Raises MqError with the code INVALID_PARAMETER."""
    try:
        return certificates.pem()
    except UnusableCertificate as error:
        raise _invalid(str(error)) from error


def _invalid(problem: str) -> MqError:
    return MqError(Code.INVALID_PARAMETER, f"tls: {problem}")
