"""The certificate of a relay: what is refused at the start, and what a changed file does."""

from __future__ import annotations

import datetime
import errno
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from aerobee_chassis.errors import CertificateError
from aerobee_chassis.tls_port import tls
from aerobee_chassis.tls_port.certificates import Certificates
from aerobee_chassis.tls_port.self_signed import make
from aerobee_chassis.tls_port.settings import TlsSettings
from support.codes import raises_about
from support.processes import certificates
from support.processes.certificates import write

NOW = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)


class ManualPoller:
    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append(callback)

    def turn(self) -> None:
        timers, self.timers = self.timers, []
        for callback in timers:
            callback()


class Watched:
    """Certificates over two files, and the events that they reported."""

    def __init__(self, certificate: Path, key: Path, password: Path | None = None) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.poller = ManualPoller()
        settings = TlsSettings(
            cert_path=str(certificate),
            key_path=str(key),
            key_password_file="" if password is None else str(password),
        )
        self.certificates = Certificates(
            settings,
            "/nowhere",
            self.poller,  # type: ignore[arg-type]  # it has what certificates ask of it
            lambda event, **fields: self.events.append((event, fields)),
        )
        self.certificates.start()

    @property
    def context(self) -> ssl.SSLContext:
        found: list[ssl.SSLContext] = []
        self.certificates.when_ready(found.append)
        return found[0]


def replace(directory: Path, certificate: Path | None, key: Path | None) -> None:
    """Puts new files in the place of the watched ones, as tools do that renew certificates."""
    for source, name in ((certificate, "server.crt"), (key, "server.key")):
        if source is not None:
            copy = directory / f"{name}.new"
            shutil.copy(source, copy)
            copy.replace(directory / name)


def test_changed_files_are_loaded_when_they_stay_the_same(tmp_path: Path) -> None:
    watched = Watched(*write(tmp_path))
    before = watched.context
    certificate, key = write(tmp_path, "renewed")

    replace(tmp_path, certificate, None)
    watched.poller.turn()
    replace(tmp_path, None, key)
    watched.poller.turn()
    assert watched.events == [] and watched.context is before

    watched.poller.turn()
    assert watched.events == [("reloaded", {"certificate": str(tmp_path / "server.crt")})]
    assert watched.context is not before

    watched.poller.turn()
    assert len(watched.events) == 1


def test_bad_certificate_is_reported_once_and_the_old_one_stays(tmp_path: Path) -> None:
    watched = Watched(*write(tmp_path))
    before = watched.context
    certificate, key = write(tmp_path, "other")
    replace(tmp_path, certificate, None)
    for _ in range(4):
        watched.poller.turn()
    [(event, fields)] = watched.events
    assert (event, fields["about"]) == ("reload_failed", str(tmp_path / "server.key"))
    assert watched.context is before

    replace(tmp_path, None, key)
    for _ in range(2):
        watched.poller.turn()
    assert watched.events[-1][0] == "reloaded"


def test_files_that_vanish_leave_the_old_one(tmp_path: Path) -> None:
    certificate, key = write(tmp_path)
    watched = Watched(certificate, key)
    key.unlink()
    for _ in range(2):
        watched.poller.turn()
    [(event, fields)] = watched.events
    assert (event, fields["about"]) == ("reload_failed", str(key))
    assert watched.context is not None


@pytest.mark.parametrize(
    ("certificate", "key", "about"),
    [
        ("server.crt", "other.key", "other.key"),
        ("no.crt", "server.key", "no.crt"),
        ("server.crt", "no.key", "no.key"),
        ("text.crt", "server.key", "text.crt"),
        ("folder.crt", "server.key", "folder.crt"),
    ],
)
def test_files_that_do_not_serve_are_named(
    tmp_path: Path, certificate: str, key: str, about: str
) -> None:
    write(tmp_path)
    write(tmp_path, "other")
    (tmp_path / "text.crt").write_text("no certificate\n")
    (tmp_path / "folder.crt").mkdir()
    with raises_about(CertificateError, str(tmp_path / about)):
        Watched(tmp_path / certificate, tmp_path / key)


def test_a_path_that_becomes_a_folder_leaves_the_old_one(tmp_path: Path) -> None:
    certificate, key = write(tmp_path)
    watched = Watched(certificate, key)
    before = watched.context
    certificate.unlink()
    certificate.mkdir()
    for _ in range(2):
        watched.poller.turn()
    assert [event for event, _ in watched.events] == ["reload_failed"]
    assert watched.context is before


def test_a_relay_without_free_descriptors_makes_the_certificate_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    certificates = Certificates(
        TlsSettings(),
        "/nowhere",
        ManualPoller(),  # type: ignore[arg-type]  # it has what certificates ask of it
        lambda event, **fields: events.append(event),
    )
    tries = []

    def spawn(*_: object, **__: object) -> int:
        tries.append(1)
        raise OSError(errno.EAGAIN, "no process can be started")

    monkeypatch.setattr("os.posix_spawn", spawn)
    for _ in range(2):
        certificates.when_ready(lambda _: pytest.fail("there is no certificate"))
    assert len(tries) == 2 and events == ["no_self_signed_certificate"] * 2


@pytest.mark.parametrize("password", ["", "wrong"])
def test_an_encrypted_key_needs_its_password(tmp_path: Path, password: str) -> None:
    certificate, key = write(tmp_path)
    certificates.encrypt(key, "secret")
    tls.load(str(certificate), str(key), "secret")
    with raises_about(CertificateError, "tlsKeyPasswordFile") as caught:
        tls.load(str(certificate), str(key), password)
    assert ("wrong" in str(caught.value)) is bool(password)


def test_password_is_read_again_with_its_key(tmp_path: Path) -> None:
    certificate, key = write(tmp_path)
    password = tmp_path / "password"
    password.write_text("first\n")
    certificates.encrypt(key, "first")
    watched = Watched(certificate, key, password)
    certificate, key = write(tmp_path)
    certificates.encrypt(key, "second")
    password.write_text("second\n")
    watched.poller.turn()
    watched.poller.turn()
    assert [event for event, _ in watched.events] == ["reloaded"]


def test_self_signed_certificate_names_hosts_and_addresses() -> None:
    certificate = x509.load_pem_x509_certificate(make(["localhost", "::1"], NOW))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["::1"]
    assert certificate.not_valid_before_utc < NOW < certificate.not_valid_after_utc
    certificate.verify_directly_issued_by(certificate)


def test_a_key_is_in_a_file_only_while_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []

    def load(cert_path: str, key_path: str, password: str = "") -> ssl.SSLContext:
        modes.append(Path(key_path).stat().st_mode & 0o777)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    monkeypatch.setattr(tls, "load", load)
    tls.load_pem(make(["localhost"], NOW), str(tmp_path))
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []
