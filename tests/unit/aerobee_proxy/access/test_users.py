"""The file of users: reload, mistakes, secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import structlog

from aerobee_chassis.errors import ConfigError
from aerobee_proxy.access.users import Users
from support.codes import raises_about
from support.proxy.access import BILLING, DISABLED, SECRET, write_users


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_users(tmp_path / "users.json", BILLING, DISABLED)


def secret_of(users: Users, name: str) -> str | None:
    user = users.get(name)
    return None if user is None else user.secrets[0].decode()


def test_changed_users_are_reloaded(file: Path) -> None:
    users = Users(file)
    write_users(file, {"username": "billing", "password": "another"})
    users.refresh()
    assert secret_of(users, "billing") == "another"
    assert secret_of(users, "gone") is None


def test_broken_file_keeps_the_last_users(file: Path) -> None:
    users = Users(file)
    file.write_text('{"users": [')
    with structlog.testing.capture_logs() as logs:
        users.refresh()
        users.refresh()
        file.unlink()
        users.refresh()
    assert [line["event"] for line in logs] == ["users_not_reloaded"]
    assert secret_of(users, "billing") == SECRET
    write_users(file, {"username": "new", "password": SECRET})
    users.refresh()
    assert secret_of(users, "new") == SECRET


def test_file_without_users(file: Path) -> None:
    assert secret_of(Users(write_users(file)), "billing") is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_file_open_to_others_is_logged(file: Path, mode: int) -> None:
    with structlog.testing.capture_logs() as logs:
        Users(file)
    assert not logs
    file.chmod(mode)
    with structlog.testing.capture_logs() as logs:
        Users(file)
    assert [line["log_level"] for line in logs] == ["warning"] and logs[0]["file"] == str(file)


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("[]", "users"),
        ('{"users": {}}', "users"),
        ('{"users": [1]}', "users[0]"),
        ('{"users": [{"username": "a", "password": "p@ss", "x": 1}]}', "users[0].x"),
        ('{"users": [{"password": "p@ss"}]}', "users[0].username"),
        ('{"users": [{"username": "a/b", "password": "p@ss"}]}', "users[0].username"),
        ('{"users": [{"username": "a", "password": ""}]}', "users[0].password"),
        ('{"users": [{"username": "a"}]}', "users[0].password"),
        (
            '{"users": [{"username": "a", "password": "p@ss", "userStatus": "off"}]}',
            "users[0].userStatus",
        ),
        (
            '{"users": [{"username": "a", "password": "p@ss", "userType": "ROOT"}]}',
            "users[0].userType",
        ),
        (
            '{"users": [{"username": "a", "password": "p@ss"}, '
            '{"username": "a", "password": "p@ss"}]}',
            "users[1].username",
        ),
        ('{"users": [{"username": "a", "password": "p@ss", "policies": 1}]}', "users[0].policies"),
    ],
)
def test_mistake_in_the_file_is_named_without_a_secret(
    tmp_path: Path, text: str, about: str
) -> None:
    file = tmp_path / "users.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Users(file)
    assert caught.value.about == about
    assert "p@ss" not in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize(("text", "line"), [(None, ""), ('{"users": [\n"p@ss', ":2")])
def test_missing_or_broken_file_is_named(tmp_path: Path, text: str | None, line: str) -> None:
    file = tmp_path / "users.json"
    if text is not None:
        file.write_text(text)
    with raises_about(ConfigError, f"{file}{line}"):
        Users(file)


def test_repr_of_a_user_has_no_secret(file: Path) -> None:
    assert "s3cret" not in repr(Users(file).get("billing"))


def test_reload_ignores_a_changed_working_directory(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    users = Users(Path(file.name))
    monkeypatch.chdir(os.sep)
    write_users(file, {"username": "new", "password": SECRET})
    users.refresh()
    assert secret_of(users, "new") == SECRET
