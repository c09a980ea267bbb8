"""Credentials of a client: where the secret key comes from."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aerobee_client import Credentials, MqError
from aerobee_client import credentials as module
from aerobee_wire.access.signature import Signatures
from aerobee_wire.access.users import User
from aerobee_wire.status import Code
from support.codes import raises_code

PATH = "/aerobee.broker.v1.MessageService/Send"


def counts(header: str, secret: bytes) -> bool:
    user = User("billing", (secret,))
    clocks = lambda: time.time_ns() // 1_000_000, lambda: time.monotonic_ns() // 1_000_000
    signatures = Signatures({"billing": user}.get, *clocks)
    try:
        return signatures.check(header, PATH) is not None
    except MqError:
        return False


def test_the_secret_key_is_not_shown() -> None:
    assert "s3cret" not in repr(Credentials("billing", "s3cret"))


def test_a_file_is_read_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RELOAD_S", 0)
    file = tmp_path / "secret"
    file.write_text("former\n")
    signer = Credentials("billing", secret_key_file=file).signer()
    assert counts(signer.sign(PATH), b"former")
    assert not signer.key_changed()
    file.write_text("new\n")
    assert counts(signer.sign(PATH), b"new")
    assert signer.key_changed() and not signer.key_changed()
    file.unlink()
    assert counts(signer.sign(PATH), b"new") and not signer.key_changed()


def test_the_environment_names_user_and_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret")
    environ = {"AEROBEE_ACCESS_KEY": "billing", "AEROBEE_SECRET_KEY_FILE": str(file)}
    found = Credentials.from_environment(environ)
    assert found is not None and counts(found.signer().sign(PATH), b"s3cret")
    assert Credentials.from_environment({}) is None
    with raises_code(Code.INVALID_PARAMETER, "credentials"):
        Credentials.from_environment({"AEROBEE_ACCESS_KEY": "billing"})


@pytest.mark.parametrize(
    ("secret", "file"), [("", ""), ("s3cret", "file"), ("", "missing"), ("", "empty")]
)
def test_one_secret_key_is_needed(tmp_path: Path, secret: str, file: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "file").write_text("s3cret")
    with raises_code(Code.INVALID_PARAMETER):
        Credentials("billing", secret, tmp_path / file if file else "")
