"""Loaded secrets are in no line of a log, wherever they stand in it."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

import pytest
import structlog

from aerobee_chassis import logs
from aerobee_chassis.hidden import HIDDEN, SHORTEST, HiddenValues

SECRET, ODD = "s3cret-of-billing", 'quote" \\ and ä'


def hidden(*values: str | bytes) -> HiddenValues:
    made = HiddenValues()
    made.hide("test", values)
    return made


@pytest.mark.parametrize(
    "value",
    [
        f"the key {SECRET} is wrong",
        {"changed": {"entries": [SECRET, {"deep": f"x{SECRET}y"}]}},
        [SECRET],
        (1, SECRET),
        {SECRET: 1},
        SECRET.encode(),
        PurePath("/run", SECRET),
        ValueError(SECRET),
        ODD,
        f"at {ODD!r}",
        json.dumps({"a": ODD}),
        "quote%22%20%5C%20and%20%C3%A4",
        ODD.encode(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_value_is_hidden_anywhere(value: Any) -> None:
    found = str(hidden(SECRET, ODD).masked_in(value))
    assert HIDDEN in found and "s3cret" not in found and "quote" not in found


def test_other_values_stay_as_they_are() -> None:
    event = {"count": 3, "rate": 0.5, "ready": True, "none": None, "name": "s3cret-of-others"}
    assert hidden(SECRET).masked_in(event) == event


def test_longest_value_is_hidden_and_the_rest_of_the_text_stays() -> None:
    made = hidden("longer", "longer-value")
    assert made.masked("a longer-value, longer. longe") == f"a {HIDDEN}, {HIDDEN}. longe"


def test_short_values_are_not_hidden() -> None:
    assert hidden("x" * (SHORTEST - 1)).masked("x" * 20) == "x" * 20
    assert hidden("x" * SHORTEST).masked("x" * SHORTEST) == HIDDEN


def test_former_value_of_an_owner_is_shown_unless_another_owner_has_it() -> None:
    made = HiddenValues()
    for owner, value in (("a", "value-1"), ("b", "value-1"), ("a", "value-2")):
        made.hide(owner, [value])
    assert made.masked("value-1 value-2") == f"{HIDDEN} {HIDDEN}"
    made.hide("b", [])
    assert made.masked("value-1 value-2") == f"value-1 {HIDDEN}"


def test_tracebacks_and_nested_keys_hide_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SECRETS", hidden(SECRET))
    event: dict[str, Any] = {"event": "failed", "given": {"password": "other", "name": "app"}}
    event["exc_info"] = RuntimeError(f"no user has {SECRET}")
    for for_people in (False, True):
        shown: Any = dict(event)
        for processor in logs._rendering(for_people=for_people):
            shown = processor(structlog.get_logger(), "error", shown)
        assert "RuntimeError" in shown and "app" in shown
        assert "s3cret" not in shown and "other" not in shown
