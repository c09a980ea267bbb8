"""Exponential retry policies."""

from __future__ import annotations

from aerobee_wire.retry_policy import ExponentialRetryPolicy


def test_rocketmqs_delays_double_up_to_two_hours() -> None:
    policy = ExponentialRetryPolicy()
    delays = policy.delays_ms()
    assert delays[:3] == (5_000, 10_000, 20_000)
    assert delays[-2:] == (5_120_000, 7_200_000)
    assert [policy.delay_ms(attempt) for attempt in range(1, 14)] == [*delays, 7_200_000]
    assert policy.delay_ms(0) == 5_000, "as the first"
    assert policy.delay_ms(10_000) == 7_200_000


def test_a_multiplier_of_1_is_one_delay() -> None:
    assert ExponentialRetryPolicy(300, 900, 1).delays_ms() == (300,)
