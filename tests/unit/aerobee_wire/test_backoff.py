"""The waits between attempts."""

from __future__ import annotations

from aerobee_wire.backoff import Backoff


def test_waits_double_up_to_the_limit() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [backoff.next_s() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_after_a_success_the_first_wait_is_short_again() -> None:
    backoff = Backoff(0.1, 0.5)
    for _ in range(3):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == 0.1
