"""Contexts: their files, what counts when, and that no secret key is printed. No network."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from aerobee_cli.contexts import Connection, Contexts, enter
from aerobee_cli.errors import CommandError
from aerobee_cli.main import main

SECRET = "not-for-the-eyes-of-others"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> Iterator[Path]:
    """Return the directory of contexts. The test has an environment without Aerobee's variables."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("AEROBEE_") or name == "NAMESRV_ADDR":
            del os.environ[name]
    path = tmp_path / "config" / "aerobee"
    os.environ["AEROBEE_CONTEXT_DIR"] = str(path)
    yield path
    os.environ.clear()
    os.environ.update(before)


def add(name: str = "prod", *more: str) -> int:
    return main(["context", "add", name, "--namesrv", "10.0.0.5:9876", *more])


def enter_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{SECRET}\n"))


def test_files_of_a_context_are_for_its_user_alone(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_secret(monkeypatch)
    assert add("prod", "--access-key", "ops", "--secret-key-file", "-", "--use") == 0
    assert directory.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes == {"prod.json": 0o600, "prod.secret": 0o600, "current": 0o600}


def test_no_command_prints_the_secret_key(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enter_secret(monkeypatch)
    assert add("prod", "--access-key", "ops", "--secret-key-file", "-", "--json") == 0
    assert main(["context", "list", "--json"]) == 0
    assert main(["context", "show", "prod"]) == 0
    assert main(["context", "remove", "prod", "--yes"]) == 0
    printed = capsys.readouterr()
    assert "10.0.0.5:9876" in printed.out and SECRET not in printed.out + printed.err
    assert list(directory.iterdir()) == []


def test_secret_key_is_not_an_argument() -> None:
    assert add("prod", "--access-key", "ops", "--secret-key", SECRET) == 2
    assert add("prod", "--access-key", "ops") == 2, "stdin is no terminal"


@pytest.mark.parametrize("suffix", ["json", "secret"])
def test_file_that_others_may_read_is_refused(
    suffix: str,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    enter_secret(monkeypatch)
    assert add("prod", "--access-key", "ops", "--secret-key-file", "-") == 0
    (directory / f"prod.{suffix}").chmod(0o640)
    assert main(["--context", "prod", "topic", "list"]) == 1
    assert f"prod.{suffix}: chmod 600" in capsys.readouterr().err


def test_secret_key_file_that_others_may_read_is_refused(tmp_path: Path, directory: Path) -> None:
    secret = tmp_path / "ops.secret"
    secret.write_text(SECRET)
    secret.chmod(0o644)
    assert add("prod", "--access-key", "ops", "--secret-key-file", str(secret)) == 1
    secret.chmod(0o600)
    assert add("prod", "--access-key", "ops", "--secret-key-file", str(secret)) == 0
    assert Contexts(directory).get("prod").secret_key_file == str(secret)
    assert main(["context", "remove", "prod", "--yes"]) == 0
    assert secret.exists(), "it is the user's file"


@pytest.mark.parametrize(
    "content", ["", "[]", '{"namesrv": 1}', '{"namesrv": "a:1", "odd": ""}', "{}"]
)
def test_damaged_context_is_refused(content: str, directory: Path) -> None:
    assert add() == 0
    (directory / "prod.json").write_text(content)
    with pytest.raises(CommandError, match=r"prod\.json is not a context"):
        Contexts(directory).get("prod")


@pytest.mark.parametrize("name", ["", "../prod", "a/b", ".new", "a b", "x" * 65])
def test_name_that_is_no_file_name_is_refused(name: str, directory: Path) -> None:
    with pytest.raises(CommandError, match="invalid context"):
        Contexts(directory).get(name)


def test_context_is_replaced_only_on_request(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_secret(monkeypatch)
    assert add("prod", "--access-key", "ops", "--secret-key-file", "-") == 0
    assert add() == 1
    assert Contexts(directory).get("prod").access_key == "ops"
    assert add("prod", "--replace") == 0
    assert Contexts(directory).get("prod").access_key == ""
    assert not (directory / "prod.secret").exists()


def test_replaced_context_keeps_the_secret_key_that_it_names_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_secret(monkeypatch)
    assert add("prod", "--access-key", "ops", "--secret-key-file", "-") == 0
    shown = Contexts(directory).get("prod").secret_key_file
    again = ("--access-key", "ops", "--secret-key-file", shown)
    assert add("prod", "--replace", "--proxy", "10.0.0.5:8081", *again) == 0
    assert Contexts(directory).get("prod").secret_key_file == shown
    assert Path(shown).exists()


class Admin:
    """An admin client that finds no users, and notes the environment of its creation."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.environ = dict(os.environ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def list_users(self) -> list[Any]:
        return []


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str, code: int = 0) -> Admin:
    """Run `aerobee … user list`, and return its admin client."""
    made: list[Admin] = []

    def admin_client(namesrv: str) -> Admin:
        made.append(Admin(namesrv))
        return made[0]

    monkeypatch.setattr("aerobee_cli.options.admin_client", admin_client)
    assert main([*arguments, "user", "list"]) == code
    [admin] = made
    return admin


def test_context_that_is_named_replaces_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert add() == 0
    os.environ |= {"NAMESRV_ADDR": "other:1", "AEROBEE_ACCESS_KEY": "other"}
    admin = ran(monkeypatch, "--context", "prod")
    assert admin.namesrv == admin.environ["NAMESRV_ADDR"] == "10.0.0.5:9876"
    assert "AEROBEE_ACCESS_KEY" not in admin.environ
    os.environ |= {"NAMESRV_ADDR": "other:1", "AEROBEE_CONTEXT": "prod"}
    assert ran(monkeypatch).namesrv == "10.0.0.5:9876"


def test_current_context_counts_as_a_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add("prod", "--use") == 0
    os.environ["AEROBEE_TLS_TRUST_CERT_PATH"] = "ca.crt"
    assert ran(monkeypatch).namesrv == "127.0.0.1:9876"
    assert main(["context", "use", "prod"]) == 0
    assert "unset AEROBEE_TLS_TRUST_CERT_PATH" in capsys.readouterr().err
    del os.environ["AEROBEE_TLS_TRUST_CERT_PATH"]
    assert ran(monkeypatch).namesrv == "10.0.0.5:9876"
    del os.environ["NAMESRV_ADDR"]  # that this process has set
    assert main(["context", "use", "--none"]) == 0
    assert ran(monkeypatch).namesrv == "127.0.0.1:9876"


def test_option_of_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert add() == 0
    admin = ran(monkeypatch, "--context", "prod", "--namesrv", "b:2", "--access-key", "me")
    assert admin.namesrv == "b:2" and admin.environ["AEROBEE_ACCESS_KEY"] == "me"


def test_unknown_context_names_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert add() == 0
    assert main(["--context", "pord", "topic", "list"]) == 1
    assert "'pord' (prod)" in capsys.readouterr().err


def test_every_variable_of_clients_is_part_of_a_context() -> None:
    environ = {"AEROBEE_TLS_KEY_PATH": "k", "PATH": "/bin", "AEROBEE_ACCESS_KEY": "kept"}
    whole = Connection(*(["x"] * 9))
    enter(whole, frozenset({"AEROBEE_ACCESS_KEY"}), environ)
    assert environ.pop("PATH") == "/bin" and environ.pop("AEROBEE_ACCESS_KEY") == "kept"
    assert set(environ.values()) == {"x"} and len(environ) == 7
    enter(Connection("x"), frozenset(), environ)
    assert environ == {"NAMESRV_ADDR": "x"}


def test_listing_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert add("prod", "--use") == add("test") == 0
    capsys.readouterr()
    assert main(["context", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["current"]) for each in found] == [("prod", True), ("test", False)]


def test_without_a_terminal_the_hint_is_an_option_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(["context", "add", "prod", "--namesrv", "h:1", "--access-key", "ops"]) == 2
    assert "--secret-key-file" in capsys.readouterr().err
