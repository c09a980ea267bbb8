"""`aerobee acl`: policies of a user that does not exist. No network."""

from __future__ import annotations

from typing import Any, Self

import pytest

from aerobee_cli.main import main
from aerobee_client.admin.descriptions import AccessChange
from aerobee_wire.status import Code, MqError


class Admin:
    """An admin client that creates policies, and then cannot return the user."""

    def __init__(self, failure: MqError) -> None:
        self._failure = failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def create_policies(self, *_: Any) -> AccessChange:
        return AccessChange(changed_at="10.0.0.8:9876", lacking={})

    def get_user(self, name: str) -> None:
        raise self._failure


@pytest.mark.parametrize(
    ("code", "warned"), [(Code.QUERY_NOT_FOUND, True), (Code.NO_PERMISSION, False)]
)
def test_policies_of_a_user_that_does_not_exist_are_created_with_a_warning(
    code: Code, warned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = MqError(code, "there is no user 'biling'")
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: Admin(failure))
    arguments = ["biling", "--resource", "Topic:orders", "--actions", "Pub"]
    assert main(["acl", "create", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "created" in out and ("no user 'biling'" in err) is warned
