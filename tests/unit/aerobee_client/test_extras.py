"""Check what the client says if an extra is not installed."""

from __future__ import annotations

import sys

import pytest

from aerobee_client import testing


def test_a_container_without_testcontainers_names_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "testcontainers.core.container", None)
    monkeypatch.delitem(sys.modules, "aerobee_client.testing.container", raising=False)
    with pytest.raises(ImportError, match=r"'aerobee-client\[testcontainers\]'"):
        _ = testing.RocketMqContainer
