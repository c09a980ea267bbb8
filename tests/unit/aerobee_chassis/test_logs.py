"""Logs: what is blanked."""

from __future__ import annotations

import pytest

from aerobee_chassis.logs import REDACTED_KEYS, configure, redact


@pytest.mark.parametrize("key", sorted(REDACTED_KEYS))
def test_secrets_and_bodies_are_blanked(key: str) -> None:
    assert redact(None, "info", {"event": "x", key: "s3cret"}) == {"event": "x", key: "[redacted]"}


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError):
        configure("test", "loud")
