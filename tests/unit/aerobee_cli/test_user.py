"""`aerobee user`: a generated secret key is not lost. No network."""

from __future__ import annotations

import json
from typing import Any, Self

import pytest

from aerobee_cli.main import main
from aerobee_client.admin.descriptions import AccessChange
from aerobee_wire.status import Code, MqError


class Admin:
    """An admin client whose changes are made, but fail with `failure` afterwards."""

    def __init__(self, failure: BaseException | None) -> None:
        self._failure = failure
        self.secret = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def create_user(self, name: str, secret: str, **more: Any) -> AccessChange:
        self.secret = secret
        if self._failure is not None:
            raise self._failure
        return AccessChange(changed_at="10.0.0.8:9876", lacking={})

    def update_user(self, name: str, *, secret: str, **more: Any) -> AccessChange:
        return self.create_user(name, secret)


@pytest.mark.parametrize("command", ["create", "rotate"])
@pytest.mark.parametrize(
    "failure", [KeyboardInterrupt(), MqError(Code.NAMESRV_UNREACHABLE, "no answer")]
)
def test_generated_secret_is_printed_if_the_command_fails(
    command: str,
    failure: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = Admin(failure)
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: admin)
    assert main(["user", command, "billing", "--generate"]) != 0
    printed = capsys.readouterr()
    assert admin.secret and admin.secret in printed.err and not printed.out


def test_a_secret_of_an_invalid_name_is_not_generated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No server is asked: there is none."""
    assert main(["user", "create", "bill ing", "--generate"]) == 1
    err = capsys.readouterr().err
    assert "'bill ing'" in err and "secret key" not in err


def test_generated_secret_is_printed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = Admin(None)
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: admin)
    assert main(["user", "create", "billing", "--generate", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["secret_key"] == admin.secret and not printed.err


# ---- test quota ----
#
# `aerobee quota`: it says where a quota counts. No network.


class QuotaAdmin:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def set_quota(self, subject: str, **rates: Any) -> AccessChange:
        return AccessChange(changed_at="10.0.0.8:9876", lacking={})


@pytest.mark.parametrize(
    ("subject", "warns"),
    [("Client:*", True), ("Client:billing-1", True), ("User:billing", False), ("Address:*", False)],
)
def test_quota_of_a_client_says_that_brokers_do_not_count_its_sends(
    subject: str,
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: QuotaAdmin())
    assert main(["quota", "set", subject, "--messages-in", "100"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"set the quota of {subject}\n"
    assert ("not its sends" in printed.err) == warns and bool(printed.err) == warns
