"""Logs: what is blanked, what is escaped, and for whom they are."""

from __future__ import annotations

import pytest

from aerobee_chassis.logs import (
    REDACTED_KEYS,
    LogFormat,
    configure,
    escape,
    is_console,
    redact,
)


@pytest.mark.parametrize("key", sorted(REDACTED_KEYS))
def test_secrets_and_bodies_are_blanked(key: str) -> None:
    assert redact(None, "info", {"event": "x", key: "s3cret"}) == {"event": "x", key: "[redacted]"}


def test_a_name_cannot_steer_the_terminal() -> None:
    event = {"event": "client\x1b[2J", "count": 3, "exception": "first\n\tsecond\x9b"}
    assert escape(None, "info", event) == {
        "event": "client\\x1b[2J",
        "count": 3,
        "exception": "first\n\tsecond\\x9b",
    }


@pytest.mark.parametrize(
    ("log_format", "on_terminal", "in_pipe"),
    [("auto", True, False), ("json", False, False), ("console", True, True)],
)
def test_the_format_depends_on_the_terminal(
    log_format: LogFormat, on_terminal: bool, in_pipe: bool
) -> None:
    assert is_console(log_format, is_terminal=True) is on_terminal
    assert is_console(log_format, is_terminal=False) is in_pipe


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError):
        configure("test", "loud")
