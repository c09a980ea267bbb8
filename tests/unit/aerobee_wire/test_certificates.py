"""Certificate files: checked, read again after a change, and causes in plain words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from aerobee_cli.authority import Authority
from aerobee_wire.certificates import (
    CallerCertificates,
    CertificateFiles,
    UnusableCertificate,
    certificate_name,
    expiry_of,
    role_of,
    tls_cause,
)
from aerobee_wire.rpcs import GET_CLUSTER_INFO, SEND
from support.processes import certificates


def files(directory: Path) -> CertificateFiles:
    certificate, key = certificates.write(directory)
    return CertificateFiles(str(certificate), str(certificate), str(key))


def test_the_contents_are_read(tmp_path: Path) -> None:
    given = files(tmp_path)
    pem = given.load()
    assert pem.authorities == pem.certificate == Path(given.certificate).read_bytes()
    assert pem.key == Path(given.key).read_bytes()
    assert CertificateFiles(authorities=given.authorities).load()[1:] == (b"", b"", "")


@pytest.mark.parametrize(
    ("broken", "option"),
    [
        ({"authorities": "missing"}, "tlsTrustCertPath"),
        ({"authorities": "text"}, "tlsTrustCertPath"),
        ({"certificate": "missing"}, "tlsCertPath"),
        ({"key": "text"}, "tlsKeyPath"),
        ({"key": "other"}, "tlsKeyPath"),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, broken: dict[str, str], option: str
) -> None:
    (tmp_path / "text").write_text("no PEM")
    (tmp_path / "other").write_bytes(certificates.write(tmp_path, "another")[1].read_bytes())
    given = files(tmp_path)
    for name, file in broken.items():
        setattr(given, name, str(tmp_path / file))
    with pytest.raises(UnusableCertificate) as caught:
        given.load()
    assert caught.value.option == option
    assert f"{option} {tmp_path}" in str(caught.value)


def test_changed_files_are_read_again_once(tmp_path: Path) -> None:
    given = files(tmp_path)
    before = given.load()
    assert given.changed() is None
    certificates.write(tmp_path)
    found = given.changed()
    assert found is not None and found != before
    assert given.changed() is None


def test_half_of_a_pair_is_reported_once_and_the_other_half_mends_it(tmp_path: Path) -> None:
    given = files(tmp_path)
    given.load()
    certificate, key = certificates.write(tmp_path, "next")
    certificate.replace(given.certificate)
    with pytest.raises(UnusableCertificate):
        given.changed()
    assert given.changed() is None
    key.replace(given.key)
    assert given.changed() is not None


def test_a_role_has_a_name_in_a_cluster() -> None:
    assert role_of(GET_CLUSTER_INFO.path) == "namesrv"
    assert role_of(SEND.path) == "broker"
    assert certificate_name("broker", "prod") == "broker.prod.aerobee"


def test_a_caller_requires_the_name_of_the_broker_that_it_expects() -> None:
    given = CallerCertificates(CertificateFiles(), "prod")
    assert given.server_name(SEND.path) == "broker.prod.aerobee"
    assert given.server_name(SEND.path, "broker-a") == "broker-a.broker.prod.aerobee"
    assert given.server_name(SEND.path, "a@b") == "broker.prod.aerobee"  # no DNS name
    assert given.server_name(GET_CLUSTER_INFO.path, "broker-a") == "namesrv.prod.aerobee"
    assert CallerCertificates(CertificateFiles()).server_name(SEND.path, "broker-a") == ""


def test_causes_are_told_only_of_tls() -> None:
    closed = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:1: "
    assert "may require TLS" in tls_cause(closed + "Socket closed")
    assert "does not use TLS" in tls_cause("Ssl handshake failed: WRONG_VERSION_NUMBER")
    assert tls_cause(closed + "Connection refused") == tls_cause("Socket closed") == ""


@pytest.mark.parametrize("days", [1, 90, 36_500], ids=str)  # from 2050 on, the form is another one
def test_the_expiry_is_read(tmp_path: Path, days: int) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    authority = Authority(tmp_path / "secure", now)
    authority.init("prod", "broker-a", ["localhost"], 90)
    authority.issue("client", "far", ["localhost"], days)
    pem = (tmp_path / "secure" / "far.crt").read_bytes()
    expected = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    assert expiry_of(pem) == expected == now + timedelta(days=days)
    bundle = (tmp_path / "secure" / "ca.crt").read_bytes() + pem
    assert expiry_of(bundle) == min(expected, now + timedelta(days=3_650))


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"-----BEGIN CERTIFICATE-----MIIB-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----A-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----AAAA-----END CERTIFICATE-----",
    ],
    ids=repr,
)
def test_the_expiry_of_other_content_is_an_error(pem: bytes) -> None:
    with pytest.raises(ValueError):
        expiry_of(pem)
