"""Delivery times and the delay levels of brokers."""

from __future__ import annotations

import contextlib

import pytest
from aerobee.broker.v1.message_pb2 import Message
from apache.rocketmq.v2.definition_pb2 import Code
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proxy.delays import PRECISION_MS, level_for, put_delay
from aerobee_proxy.errors import Refused
from aerobee_proxy.settings import DEFAULT_RETRY_DELAYS_MS


@pytest.mark.parametrize(
    ("delay_ms", "level"),
    [(-5_000, 0), (0, 0), (1_000, 1), (9_001, 3), (10_000, 3), (59_500, 5), (7_200_000, 18)],
)
def test_a_level_near_enough_is_taken(delay_ms: int, level: int) -> None:
    assert level_for(delay_ms) == level


@given(st.integers(1, 90_000_000))
def test_no_message_comes_early_or_a_second_late(delay_ms: int) -> None:
    with contextlib.suppress(Refused):
        level = level_for(delay_ms)
        assert 0 <= DEFAULT_RETRY_DELAYS_MS[level - 1] - delay_ms < PRECISION_MS


def test_a_time_that_no_level_is_near_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        level_for(20_000)
    assert caught.value.code == Code.NOT_IMPLEMENTED


def test_the_delivery_time_travels_beside_the_level() -> None:
    message = Message(properties={"TIMER_DELIVER_MS": "109900", "TAGS": "a"})
    put_delay(message, 100_000)
    assert message.properties == {"TAGS": "a", "DELAY": "3", "__DELIVERY_TIME_MS": "109900"}


def test_a_time_that_is_past_delays_nothing() -> None:
    message = Message(properties={"TIMER_DELIVER_MS": "99000"})
    put_delay(message, 100_000)
    assert "DELAY" not in message.properties
