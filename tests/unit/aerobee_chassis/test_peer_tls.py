"""The TLS options of services, and the certificates of their channels."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
import structlog

from aerobee_chassis.config import load
from aerobee_chassis.errors import CertificateError, ConfigError
from aerobee_chassis.logs import SECRETS
from aerobee_chassis.rpc.peer_tls import PeerTlsOptions, ServerTlsOptions, warn_of_expiry
from aerobee_http2.tls import client_context, server_context
from aerobee_wire.certificates import Pem
from support.codes import raises_about
from support.processes import certificates

ENFORCING = "tlsServerMode=enforcing"
SEND, ROUTE = "/aerobee.broker.v1.MessageService/Send", "/aerobee.namesrv.v1.NamesrvService/Get"


def options(*sets: str) -> ServerTlsOptions:
    return load(ServerTlsOptions, sets=sets)


def calling(*sets: str) -> PeerTlsOptions:
    """The options of a service that has no such port."""
    return load(PeerTlsOptions, sets=sets)


@pytest.mark.parametrize(
    ("sets", "about"),
    [
        ((ENFORCING,), "tlsCertPath"),
        (("tlsCertPath=c",), "tlsKeyPath"),
        ((ENFORCING, "tlsCertPath=c", "tlsKeyPath=k"), "tlsTrustCertPath"),
        (("tlsClusterName=a/b",), "tlsClusterName"),
        (("tlsTrustCertPath=c",), "tlsServerMode"),
        (("tlsServerMode=permissive", "tlsTrustCertPath=c"), "tlsServerMode"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(sets: tuple[str, ...], about: str) -> None:
    with raises_about(ConfigError, about):
        options(*sets)


@pytest.mark.parametrize("value", ["COMPLETION_QUEUE", "AIO", "HTTP2", "ANY"])
def test_the_former_option_of_the_transport_has_no_effect(value: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"grpcTransport={value}\nmaxConnections=7\n")
    given = load(ServerTlsOptions, file=file, environ={"AEROBEE_GRPC_TRANSPORT": value})
    assert (given.max_connections, given.ignored_keys) == (7, ("grpcTransport",))
    assert (given.misspelt_variables, given.notes) == ((), ())
    assert "grpcTransport" not in given.to_json()
    assert options("grpc_transport=AIO", "grpctransport=AIO").ignored_keys != ()


def test_plaintext_is_the_default() -> None:
    assert options().peer_tls() is None and options().server_tls() is None
    assert options("tlsServerMode=permissive").server_tls() is None


PERMISSIVE = ("tlsServerMode=permissive", "tlsCertPath=c", "tlsKeyPath=k", "tlsTrustCertPath=a")


def test_permissive_port_with_a_certificate_accepts_both_and_checks_callers() -> None:
    given = options(*PERMISSIVE, "authenticationEnabled=true", "tlsServerNeedClientAuth=optional")
    tls = given.server_tls()
    assert tls is not None and tls.accepts_plaintext and given.checks_callers
    enforced = options(*PERMISSIVE[1:], ENFORCING).server_tls()
    assert enforced is not None and not enforced.accepts_plaintext
    with raises_about(ConfigError, "tlsTrustCertPath"):
        options(*PERMISSIVE[:3])


def test_observed_permissive_port_is_open() -> None:
    assert options(*PERMISSIVE).is_closed
    with raises_about(ConfigError, "bindAddress"):
        options(*PERMISSIVE, "accessObserveOnly=true", "bindAddress=0.0.0.0")


def test_calls_stay_in_plaintext_while_other_ports_do_not_accept_tls() -> None:
    assert options(*PERMISSIVE, "tlsCalls=false").peer_tls() is None
    assert options(*PERMISSIVE).peer_tls() is not None


async def test_callers_need_no_certificate_if_the_option_says_so() -> None:
    given = options(
        ENFORCING, "tlsCertPath=c", "tlsKeyPath=k", "tlsServerNeedClientAuth=none"
    ).server_tls()
    assert given is not None
    with raises_about(CertificateError, "c"):
        await given.load()


def test_a_channel_requires_the_name_of_the_role(tmp_path: Path) -> None:
    certificate, _ = certificates.write(tmp_path)
    by_name = calling(f"tlsTrustCertPath={certificate}", "tlsClusterName=prod").peer_tls()
    assert by_name is not None
    assert by_name.of(SEND).server_name == "broker.prod.aerobee"
    assert by_name.of(ROUTE).server_name == "namesrv.prod.aerobee"
    by_host = calling(f"tlsTrustCertPath={certificate}", "tlsVerify=host").peer_tls()
    assert by_host is not None and by_host.of(SEND).server_name == ""


def test_former_certificates_stay_while_new_ones_cannot_be_used(tmp_path: Path) -> None:
    certificate, _ = certificates.write(tmp_path)
    peers = calling(f"tlsTrustCertPath={certificate}").peer_tls()
    assert peers is not None
    before = peers.of(SEND).authorities
    certificate.write_text("no PEM")
    assert not peers.reload() and not peers.reload()
    assert peers.of(SEND).authorities == before
    certificates.write(tmp_path)
    assert peers.reload() and peers.of(SEND).authorities != before


def test_encrypted_key_is_used_with_the_password_of_a_file(tmp_path: Path) -> None:
    certificate, key = certificates.write(tmp_path)
    certificates.encrypt(key, "opensesame")
    password = tmp_path / "password"
    paths = (f"tlsCertPath={certificate}", f"tlsKeyPath={key}", f"tlsTrustCertPath={certificate}")
    wrong = {"": "is not given", "other": "is wrong"}
    for given, reason in wrong.items():
        password.write_text(given)
        peers = calling(*paths, f"tlsKeyPasswordFile={password}").peer_tls()
        assert peers is not None
        with raises_about(CertificateError, str(key)) as caught:
            peers.of(SEND)
        assert f"tlsKeyPasswordFile {reason}" in str(caught.value)
        assert "\n" not in str(caught.value)
    password.write_text("opensesame\n")
    peers = calling(*paths, f"tlsKeyPasswordFile={password}").peer_tls()
    assert peers is not None
    channel = peers.of(SEND)
    pem = Pem(channel.authorities, channel.certificate, channel.key, channel.password)
    assert pem.key == key.read_bytes() and "opensesame" not in repr(channel)
    assert client_context(pem) is client_context(Pem(*pem))
    assert server_context(pem, checks_clients=True)
    with pytest.raises(ssl.SSLError):
        client_context(pem._replace(password="other"))
    assert SECRETS.masked("the password is opensesame") == "the password is [redacted]"


# ---- ports on other addresses than loopback ----

CLOSED = (ENFORCING, "tlsCertPath=c", "tlsKeyPath=k", "tlsTrustCertPath=a")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"])
def test_an_open_port_on_loopback_is_served(host: str) -> None:
    assert not options(f"bindAddress={host}").is_insecure


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "queue.example.org", "127.1"])
def test_an_open_port_elsewhere_is_refused_with_three_ways_forward(host: str) -> None:
    with raises_about(ConfigError, "bindAddress") as caught:
        options(f"bindAddress={host}")
    for way in ("aerobee certs init", "tlsServerMode=enforcing", "--insecure"):
        assert way in str(caught.value)
    assert options(f"bindAddress={host}", "insecure=true").is_insecure


def test_a_closed_port_is_served_on_each_address() -> None:
    assert not options("bindAddress=0.0.0.0", *CLOSED).is_insecure
    with raises_about(ConfigError, "bindAddress"):
        options("bindAddress=0.0.0.0", *CLOSED, "tlsServerNeedClientAuth=none")


def test_users_need_no_certificate_at_a_closed_port() -> None:
    optional = (*CLOSED, "tlsServerNeedClientAuth=optional")
    assert not options("bindAddress=0.0.0.0", *optional, "authenticationEnabled=true").is_insecure
    # Observed calls are made: then a port without certificates is open.
    with raises_about(ConfigError, "bindAddress"):
        options("bindAddress=0.0.0.0", *optional, "accessObserveOnly=true")
    assert not options("bindAddress=0.0.0.0", *CLOSED, "accessObserveOnly=true").is_insecure
    with raises_about(ConfigError, "tlsTrustCertPath"):
        options(ENFORCING, "tlsCertPath=c", "tlsKeyPath=k", "tlsServerNeedClientAuth=optional")


def test_insecure_has_no_effect_on_a_closed_port() -> None:
    assert not options("bindAddress=0.0.0.0", *CLOSED, "insecure=true").is_insecure
    assert not options("insecure=true").is_insecure


# ---- expiry ----


@pytest.mark.parametrize(("days", "warned"), [(20, False), (14.5, False), (13, True), (-3, True)])
def test_a_certificate_that_expires_soon_is_logged(
    tmp_path: Path, days: float, warned: bool
) -> None:
    certificate, key = certificates.write(tmp_path)
    given = calling(f"tlsCertPath={certificate}", f"tlsKeyPath={key}")
    expires = given.expiries()["tlsCertPath"]
    with structlog.testing.capture_logs() as logs:
        warn_of_expiry(given, expires - timedelta(days=days))
    assert [line["event"] for line in logs] == ["certificate_expires"] * warned


def test_a_file_that_cannot_be_read_has_no_expiry(tmp_path: Path) -> None:
    broken = tmp_path / "broken.crt"
    broken.write_text("no PEM")
    assert calling(f"tlsTrustCertPath={broken}").expiries() == {}
    assert calling(f"tlsTrustCertPath={tmp_path / 'missing'}").expiries() == {}
