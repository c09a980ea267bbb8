"""The health check of several services, without any service."""

from __future__ import annotations

import pytest

from aerobee_chassis import healthcheck
from aerobee_chassis.healthcheck import main


@pytest.mark.parametrize("arguments", [[], ["localhost"], [":1"], ["a:x"], ["a:1", "b"]])
def test_other_arguments_than_addresses_are_refused(arguments: list[str]) -> None:
    assert main(arguments) == 2


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ({"a:1": True}, 0),
        ({"a:1": False}, 1),
        ({"a:1": True, "b:2": True}, 0),
        ({"a:1": True, "b:2": False}, 1),
        ({"a:1": False, "b:2": True}, 1),
    ],
)
def test_all_services_must_serve(
    states: dict[str, bool], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healthcheck, "serving", states.__getitem__)
    assert main(list(states)) == code


def test_service_without_an_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(address: str) -> bool:
        if address == "b:2":
            raise ConnectionRefusedError("refused")
        return True

    monkeypatch.setattr(healthcheck, "serving", asked)
    assert main(["a:1", "b:2"]) == 1
    assert "b:2" in capsys.readouterr().err
