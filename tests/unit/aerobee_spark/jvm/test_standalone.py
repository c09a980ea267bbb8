"""Test health checks against the record of a standalone master."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_spark.jvm import standalone


def record(status: str = "ALIVE", **workers: str) -> dict[str, Any]:
    return {
        "status": status,
        "workers": [{"host": host, "state": state} for host, state in workers.items()],
    }


@pytest.mark.parametrize(
    ("found", "host", "serves"),
    [
        (record(), None, True),
        (record("RECOVERING", a="ALIVE"), None, False),
        (record(a="ALIVE", b="ALIVE"), "a", True),
        (record(a="DEAD", b="ALIVE"), "a", False),
        (record(), "a", False),
    ],
)
def test_health_is_what_the_master_counts_as_alive(
    found: dict[str, Any], host: str | None, serves: bool
) -> None:
    assert (standalone.problem(found, host) is None) == serves


def test_a_master_that_does_not_answer_is_not_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert standalone.main(["127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().out
