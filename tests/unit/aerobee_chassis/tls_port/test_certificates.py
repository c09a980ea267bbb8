"""The certificate of a port: what is refused at the start, and what a changed file does."""

from __future__ import annotations

import asyncio
import datetime
import errno
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Self

import pytest
import structlog
from cryptography import x509

from aerobee_chassis.errors import CertificateError
from aerobee_chassis.tls_port import tls
from aerobee_chassis.tls_port.certificates import PortCertificate
from aerobee_chassis.tls_port.self_signed import make
from aerobee_chassis.tls_port.settings import TlsSettings
from support.codes import raises_about
from support.processes import certificates
from support.processes.certificates import write

NOW = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)


async def at_once(load: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """In place of a thread."""
    return load()


class Watched:
    """A certificate in two files, and the events that it logged."""

    def __init__(self, certificate: Path, key: Path, password: Path | None = None) -> None:
        self.certificate = PortCertificate(
            TlsSettings(
                cert_path=str(certificate),
                key_path=str(key),
                key_password_file="" if password is None else str(password),
            ),
            at_once,
        )
        self.events: list[MutableMapping[str, Any]] = []

    async def load(self) -> Self:
        await self.certificate.load()
        return self

    async def look(self, times: int = 1) -> None:
        with structlog.testing.capture_logs() as logs:
            for _ in range(times):
                await self.certificate.look()
        self.events += logs

    async def context(self) -> ssl.SSLContext:
        return await self.certificate.context()


def replace(directory: Path, certificate: Path | None, key: Path | None) -> None:
    """Puts new files in the place of the watched ones, as tools do that renew certificates."""
    for source, name in ((certificate, "server.crt"), (key, "server.key")):
        if source is not None:
            copy = directory / f"{name}.new"
            shutil.copy(source, copy)
            copy.replace(directory / name)


async def test_changed_files_are_loaded_when_they_stay_the_same(tmp_path: Path) -> None:
    watched = await Watched(*write(tmp_path)).load()
    before = await watched.context()
    certificate, key = write(tmp_path, "renewed")

    replace(tmp_path, certificate, None)
    await watched.look()
    replace(tmp_path, None, key)
    await watched.look()
    assert watched.events == [] and await watched.context() is before

    await watched.look()
    [event] = watched.events
    assert event["event"] == "certificate_reloaded"
    assert event["certificate"] == str(tmp_path / "server.crt")
    assert await watched.context() is not before

    await watched.look()
    assert len(watched.events) == 1


async def test_bad_certificate_is_reported_once_and_the_old_one_stays(tmp_path: Path) -> None:
    watched = await Watched(*write(tmp_path)).load()
    before = await watched.context()
    certificate, key = write(tmp_path, "other")
    replace(tmp_path, certificate, None)
    await watched.look(4)
    [event] = watched.events
    assert (event["event"], event["about"]) == (
        "certificate_not_reloaded",
        str(tmp_path / "server.key"),
    )
    assert await watched.context() is before

    replace(tmp_path, None, key)
    await watched.look(2)
    assert watched.events[-1]["event"] == "certificate_reloaded"


async def test_files_that_vanish_leave_the_old_one(tmp_path: Path) -> None:
    certificate, key = write(tmp_path)
    watched = await Watched(certificate, key).load()
    key.unlink()
    await watched.look(2)
    [event] = watched.events
    assert (event["event"], event["about"]) == ("certificate_not_reloaded", str(key))
    assert await watched.context() is not None


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
async def test_files_that_do_not_serve_are_named(
    tmp_path: Path, certificate: str, key: str, about: str
) -> None:
    write(tmp_path)
    write(tmp_path, "other")
    (tmp_path / "text.crt").write_text("no certificate\n")
    (tmp_path / "folder.crt").mkdir()
    with raises_about(CertificateError, str(tmp_path / about)):
        await Watched(tmp_path / certificate, tmp_path / key).load()


async def test_a_path_that_becomes_a_folder_leaves_the_old_one(tmp_path: Path) -> None:
    certificate, key = write(tmp_path)
    watched = await Watched(certificate, key).load()
    before = await watched.context()
    certificate.unlink()
    certificate.mkdir()
    await watched.look(2)
    assert [event["event"] for event in watched.events] == ["certificate_not_reloaded"]
    assert await watched.context() is before


async def test_a_self_signed_certificate_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def run(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(errno.EAGAIN, "no process can be started")
        made = b"" if len(tries) == 2 else make(["localhost"], NOW)
        return subprocess.CompletedProcess([], 0 if made else 1, made)

    monkeypatch.setattr(subprocess, "run", run)
    certificate = PortCertificate(TlsSettings(), at_once)
    await certificate.start()
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(CertificateError):
                await certificate.context()
        assert [line["event"] for line in logs] == ["no_self_signed_certificate"] * 2
        first, second = await asyncio.gather(certificate.context(), certificate.context())
    assert first is second and len(tries) == 3
    assert logs[-1]["event"] == "self_signed_certificate"
    await certificate.stop()


@pytest.mark.parametrize("password", ["", "wrong"])
def test_an_encrypted_key_needs_its_password(tmp_path: Path, password: str) -> None:
    certificate, key = write(tmp_path)
    certificates.encrypt(key, "secret")
    tls.load(str(certificate), str(key), "secret")
    with raises_about(CertificateError, "tlsKeyPasswordFile") as caught:
        tls.load(str(certificate), str(key), password)
    assert ("wrong" in str(caught.value)) is bool(password)


async def test_password_is_read_again_with_its_key(tmp_path: Path) -> None:
    certificate, key = write(tmp_path)
    password = tmp_path / "password"
    password.write_text("first\n")
    certificates.encrypt(key, "first")
    watched = await Watched(certificate, key, password).load()
    certificate, key = write(tmp_path)
    certificates.encrypt(key, "second")
    password.write_text("second\n")
    await watched.look()
    await watched.look()
    assert [event["event"] for event in watched.events] == ["certificate_reloaded"]


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

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tls, "load", load)
    tls.load_pem(make(["localhost"], NOW))
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []


def test_password_of_a_key_is_not_shown() -> None:
    assert "secret" not in repr(TlsSettings(key_password="secret"))
