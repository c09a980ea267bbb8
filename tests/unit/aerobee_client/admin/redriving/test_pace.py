"""A rate of sends."""

from __future__ import annotations

import pytest

from aerobee_client.admin.redriving.run import Pace


def test_pace_keeps_the_rate() -> None:
    pace = Pace(10, 100.0)
    assert pace.next_wait(100.0) == 0
    assert pace.next_wait(100.0) == pytest.approx(0.1)
    assert pace.next_wait(100.15) == pytest.approx(0.05)


def test_pace_does_not_catch_up_after_a_pause() -> None:
    pace = Pace(10, 100.0)
    assert pace.next_wait(105.0) == 0
    assert pace.next_wait(105.0) == pytest.approx(0.1)


def test_pace_without_a_rate_never_waits() -> None:
    pace = Pace(None, 100.0)
    assert [pace.next_wait(100.0) for _ in range(3)] == [0, 0, 0]
