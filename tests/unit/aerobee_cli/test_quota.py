"""`aerobee quota`: it says where a quota counts. No network."""

from __future__ import annotations

from typing import Any, Self

import pytest

from aerobee_cli.main import main
from aerobee_client.admin.descriptions import AccessChange


class Admin:
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
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: Admin())
    assert main(["quota", "set", subject, "--messages-in", "100"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"set the quota of {subject}\n"
    assert ("not its sends" in printed.err) == warns and bool(printed.err) == warns
