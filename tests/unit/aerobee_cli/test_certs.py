"""`aerobee certs`: the authority of a cluster, and its certificates."""

from __future__ import annotations

import datetime
import json
import os
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.config import load
from aerobee_cli.authority import Authority, Issued
from aerobee_cli.errors import CommandError
from aerobee_cli.main import main
from aerobee_client import Tls
from aerobee_namesrv.config import NamesrvOptions
from aerobee_proxy.config import ProxyOptions
from aerobee_wire.certificates import CertificateFiles
from support.processes import certificates

NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
HOSTS = ["localhost", "127.0.0.1"]
BROKER = "broker-a"
FIRST = {
    *("namesrv.crt", "broker.crt", "proxy.crt", "console.crt", "admin.crt", "client.crt"),
}


def made(directory: Path, now: datetime.datetime = NOW) -> Authority:
    authority = Authority(directory, now)
    authority.init("prod", BROKER, HOSTS, 90)
    return authority


def test_each_role_has_a_certificate_with_its_names(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    issued = {each.file: each for each in made(directory).list()}
    assert set(issued) == {"ca.crt", *FIRST}
    assert issued["broker.crt"].names == (
        "broker.prod.aerobee",
        "broker-a.broker.prod.aerobee",
        "localhost",
        "127.0.0.1",
        "aerobee://prod/broker/broker-a",
    )
    assert issued["broker.crt"].expires_in_days == 90
    assert (issued["ca.crt"].role, issued["ca.crt"].cluster) == ("ca", "prod")
    certificate, key = str(directory / "broker.crt"), str(directory / "broker.key")
    CertificateFiles(str(directory / "ca.crt"), certificate, key).load()


def test_options_name_the_paths_on_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "secure"
    at = ["--at", "/etc/aerobee"]
    assert main(["certs", "init", str(directory), "--broker", BROKER, *at]) == 0
    assert "--config /etc/aerobee/ROLE.conf" in capsys.readouterr().err
    issue = ["certs", "issue", str(directory), "--role", "broker", "--name", "broker-b"]
    assert main([*issue, *at]) == 0
    for name in ("namesrv", "broker", "broker-b", "proxy"):
        options = (directory / f"{name}.conf").read_text()
        assert f"tlsKeyPath=/etc/aerobee/{name}.key\n" in options
        assert "tlsTrustCertPath=/etc/aerobee/ca.crt\n" in options
    assert "=/etc/aerobee/admin.crt\n" in (directory / "admin.env").read_text()
    assert main([*issue, "--at", "aerobee"]) == 2


def test_keys_are_private(tmp_path: Path) -> None:
    made(tmp_path / "secure")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "secure").iterdir()}
    assert {mode for name, mode in modes.items() if name.endswith(".key")} == {0o600}
    assert (tmp_path / "secure").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_read_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(CommandError, match="chmod 700"):
        made(tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    authority = made(tmp_path / "secure")
    before = {path: path.read_bytes() for path in (tmp_path / "secure").iterdir()}
    with pytest.raises(CommandError, match="is not empty"):
        authority.init("prod", BROKER, HOSTS, 90)
    with pytest.raises(CommandError, match=r"broker\.key exists"):
        authority.issue("broker", "broker", HOSTS, 90)
    assert {path: path.read_bytes() for path in before} == before


def test_an_authority_that_is_kept_renews_what_expires_soon(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    assert len(Authority(directory, NOW).keep("prod", BROKER, HOSTS, 90)) == len(FIRST)
    assert Authority(directory, NOW).keep("prod", BROKER, HOSTS, 90) == []
    later = Authority(directory, NOW + datetime.timedelta(days=61))
    assert len(later.keep("prod", BROKER, HOSTS, 90)) == len(FIRST)


def test_an_authority_of_another_cluster_is_not_kept(tmp_path: Path) -> None:
    made(tmp_path / "secure")
    with pytest.raises(CommandError, match="cluster 'prod'"):
        Authority(tmp_path / "secure", NOW).keep("other", BROKER, HOSTS, 90)


class LateAuthority(Authority):
    """Another process makes the authority between the look at the directory and `init`."""

    def init(self, cluster: str, broker: str, hosts: Sequence[str], days: int) -> list[Issued]:
        Authority(self._directory, NOW).init(cluster, broker, hosts, days)
        return super().init(cluster, broker, hosts, days)


def test_a_start_uses_the_authority_that_another_one_has_just_made(tmp_path: Path) -> None:
    assert LateAuthority(tmp_path / "secure", NOW).keep("prod", BROKER, HOSTS, 90) == []


def test_starts_at_once_make_one_authority(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    with ThreadPoolExecutor(6) as starts:
        each = [
            starts.submit(Authority(directory, NOW).keep, "prod", BROKER, HOSTS, 90)
            for _ in range(6)
        ]
    assert sorted(len(start.result()) for start in each) == [0, 0, 0, 0, 0, len(FIRST)]
    assert [path.name for path in tmp_path.iterdir()] == ["secure"]


def test_a_start_that_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "secure"
    with monkeypatch.context() as broken:
        broken.setattr(Authority, "_write_options", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(directory)
    assert not list(tmp_path.iterdir())
    assert len(Authority(directory, NOW).keep("prod", BROKER, HOSTS, 90)) == len(FIRST)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def kept_after_each_crash(
    directory: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> list[Issued]:
    """Bring the certificates up to date, after a crash at each of the writes that this needs.

    A crash at one write leaves what is before it. A crash runs no clean-up, so a file of a
    process with the same number remains.
    """
    write = Authority._write
    left = 0

    def crashing(self: Authority, name: str, *content: Any, **more: Any) -> None:
        nonlocal left
        if not left:
            (directory / name).with_suffix(f".new-{os.getpid()}").touch()
            raise KeyboardInterrupt
        left -= 1
        write(self, name, *content, **more)

    for number in range(100):
        left = number
        with monkeypatch.context() as broken:
            broken.setattr(Authority, "_write", crashing)
            try:
                return Authority(directory, NOW).keep("prod", broker, HOSTS, 90)
            except KeyboardInterrupt:
                continue
    raise AssertionError("the certificates are not kept")


def test_certificate_is_made_after_each_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "secure"
    made(directory)
    for file in directory.glob("proxy.*"):
        file.unlink()
    kept_after_each_crash(directory, BROKER, monkeypatch)
    assert load(ProxyOptions, file=directory / "proxy.conf").authentication_enabled
    certificate, key = str(directory / "proxy.crt"), str(directory / "proxy.key")
    CertificateFiles(str(directory / "ca.crt"), certificate, key).load()


def test_broker_is_renamed_after_each_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "secure"
    made(directory)
    (renamed,) = kept_after_each_crash(directory, "broker-b", monkeypatch)
    assert renamed.name == "broker-b"
    assert load(BrokerOptions, file=directory / "broker.conf").broker_name == "broker-b"


def test_starts_at_once_make_missing_certificates_for_one_key(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    made(directory)
    for file in directory.glob("proxy.*"):
        file.unlink()
    with ThreadPoolExecutor(6) as starts:
        for start in [
            starts.submit(Authority(directory, NOW).keep, "prod", BROKER, HOSTS, 90)
            for _ in range(6)
        ]:
            start.result()
    certificate, key = str(directory / "proxy.crt"), str(directory / "proxy.key")
    CertificateFiles(str(directory / "ca.crt"), certificate, key).load()
    assert not list(directory.glob(".new-*"))


def test_damaged_key_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    authority = made(directory)
    (directory / "proxy.crt").unlink()
    (directory / "proxy.key").write_bytes(b"")
    with pytest.raises(CommandError, match=r"proxy\.key is not a key"):
        authority.keep("prod", BROKER, HOSTS, 90)


def test_the_key_of_another_authority_signs_nothing(tmp_path: Path) -> None:
    made(tmp_path / "other")
    authority = made(tmp_path / "secure")
    (tmp_path / "secure" / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(CommandError, match="is not the key"):
        authority.issue("broker", "broker-b", HOSTS, 90)


def test_a_certificate_of_others_is_not_renewed(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    made(directory)
    certificate, _ = certificates.write(directory, "foreign")
    before = certificate.read_bytes()
    later = Authority(directory, NOW + datetime.timedelta(days=4_000))
    assert len(later.renew(30, 90)) == len(FIRST)
    assert certificate.read_bytes() == before
    assert [each.role for each in later.list() if each.file == "foreign.crt"] == [""]


def test_one_more_process_has_a_name_of_its_own(tmp_path: Path) -> None:
    issued = made(tmp_path / "secure").issue("broker", "broker-b", ["10.0.0.9"], 30)
    assert (issued.file, issued.role, issued.name) == ("broker-b.crt", "broker", "broker-b")
    assert "broker-b.broker.prod.aerobee" in issued.names and "10.0.0.9" in issued.names


def test_one_more_process_has_a_file_of_options(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    made(directory).issue("broker", "broker-b", HOSTS, 30)
    options = load(BrokerOptions, file=directory / "broker-b.conf")
    assert options.broker_name == "broker-b"
    assert options.tls_cert_path == str(directory / "broker-b.crt")


def test_a_broker_of_another_name_gets_a_certificate_with_it(tmp_path: Path) -> None:
    """Its brokerName has changed, and a certificate of another role was removed."""
    directory = tmp_path / "secure"
    Authority(directory, NOW).init("prod", "broker-a", HOSTS, 90)
    for file in directory.glob("client.*"):
        file.unlink()
    key = (directory / "broker.key").read_bytes()
    kept = Authority(directory, NOW).keep("prod", "broker-b", HOSTS, 90)
    assert {(each.file, each.name) for each in kept} == {
        *(("client.crt", "client"), ("broker.crt", "broker-b"))
    }
    (broker,) = [each for each in kept if each.file == "broker.crt"]
    assert broker.names == (
        *("broker.prod.aerobee", "broker-b.broker.prod.aerobee", *HOSTS),
        "aerobee://prod/broker/broker-b",
    )
    assert (directory / "broker.key").read_bytes() == key
    assert load(BrokerOptions, file=directory / "broker.conf").broker_name == "broker-b"


def test_a_broker_of_a_machine_room_gets_a_certificate(tmp_path: Path) -> None:
    """Its name is "ROOM@NAME", which cannot be in a DNS name."""
    issued = made(tmp_path / "secure").issue("broker", "east@broker", HOSTS, 30)
    assert issued.name == "east@broker"
    assert issued.names == ("broker.prod.aerobee", *HOSTS, "aerobee://prod/broker/east@broker")


def test_a_name_that_services_cannot_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be in a certificate"):
        Authority(tmp_path / "secure", NOW).init("prod", "my broker", HOSTS, 90)
    assert not list(tmp_path.iterdir())


def test_a_certificate_that_expires_soon_is_signed_again_for_the_same_key(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    made(directory).issue("proxy", "edge", HOSTS, 200)
    before = x509.load_pem_x509_certificate((directory / "broker.crt").read_bytes())
    later = Authority(directory, NOW + datetime.timedelta(days=61))
    assert {each.file for each in later.renew(30, 90)} == FIRST
    after = x509.load_pem_x509_certificate((directory / "broker.crt").read_bytes())
    assert after.public_key() == before.public_key() and after.serial_number != before.serial_number
    assert later.renew(30, 90) == []
    assert not list(directory.glob("*.new"))


def test_services_and_clients_read_the_files_of_options(tmp_path: Path) -> None:
    directory = tmp_path / "secure"
    made(directory)
    options = load(NamesrvOptions, file=directory / "namesrv.conf")
    assert options.server_tls() is not None and options.tls_cluster_name == "prod"
    assert load(BrokerOptions, file=directory / "broker.conf").broker_name == BROKER
    for role in ("admin", "client"):
        environ = dict(
            word.split("=", 1)
            for line in (directory / f"{role}.env").read_text().splitlines()
            for word in shlex.split(line.removeprefix("export "))
        )
        tls = Tls.from_environment(environ)
        assert tls is not None and (tls.cluster, tls.verify) == ("prod", "name")
        assert Path(tls.certificate) == directory / f"{role}.crt"


def test_the_command_prints_the_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(tmp_path / "secure")
    assert main(["certs", "init", directory, "--cluster", "prod", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(FIRST)
    assert main(["certs", "renew", directory]) == 0
    assert "no certificate" in capsys.readouterr().err
    assert main(["certs", "show", directory]) == 0
    assert "broker.crt" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ("init", "D", "--cluster", "a_b"),
        ("init", "D", "--cluster", "-a"),
        ("init", "D", "--cluster", "a" * 41),
        ("init", "D", "--hosts", "zürich"),
        ("issue", "D", "--role", "king", "--name", "b"),
        ("issue", "D", "--role", "broker", "--name", "../b"),
    ],
    ids=" ".join,
)
def test_a_bad_name_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", *arguments]) == 2
    assert "write" in capsys.readouterr().err
