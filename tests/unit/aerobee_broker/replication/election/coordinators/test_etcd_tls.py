"""The files by which a broker and etcd know each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.config import BrokerOptions
from aerobee_broker.replication.election.coordinators.etcd_tls import etcd_tls
from aerobee_chassis.config import load
from aerobee_chassis.errors import CertificateError
from support.processes import certificates


def options(**paths: Path) -> BrokerOptions:
    sets = ["etcdEndpoints=10.0.0.1:2379", "brokerId=1"]
    return load(BrokerOptions, sets=sets + [f"{key}={path}" for key, path in paths.items()])


def test_without_an_authority_etcd_is_spoken_to_in_plaintext() -> None:
    assert etcd_tls(options()) is None


def test_a_certificate_of_the_broker_may_be_left_out(tmp_path: Path) -> None:
    authority, _ = certificates.write(tmp_path, "etcd")
    certificate, key = certificates.write(tmp_path, "broker")
    alone = etcd_tls(options(etcdCaPath=authority))
    assert alone and (alone.authorities, alone.key) == (authority.read_bytes(), b"")
    both = etcd_tls(options(etcdCaPath=authority, etcdCertPath=certificate, etcdKeyPath=key))
    assert both and (both.certificate, both.key) == (certificate.read_bytes(), key.read_bytes())


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("etcdCaPath", "missing.crt"),
        ("etcdCaPath", "etcd.key"),
        ("etcdCertPath", "missing.crt"),
        ("etcdKeyPath", "missing.key"),
        ("etcdKeyPath", "etcd.key"),  # of another certificate
        ("etcdKeyPath", "broker.crt"),
    ],
)
def test_a_file_that_is_none_of_these_is_named(tmp_path: Path, option: str, named: str) -> None:
    authority, _ = certificates.write(tmp_path, "etcd")
    certificate, key = certificates.write(tmp_path, "broker")
    paths = {"etcdCaPath": authority, "etcdCertPath": certificate, "etcdKeyPath": key}
    with pytest.raises(CertificateError) as refused:
        etcd_tls(options(**paths | {option: tmp_path / named}))
    assert (refused.value.about, option in str(refused.value)) == (str(tmp_path / named), True)
