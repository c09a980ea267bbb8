"""The StatusCode table: what consumers ask for."""

from __future__ import annotations

import pytest
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code, FilterExpression, FilterType
from aerobee_foreign.google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2 import validation
from aerobee_proxy.v2.status import Refused
from support.proxy.harness import refused

OPTIONS = ProxyOptions()
HOUR_MS = 3_600_000


def duration(milliseconds: int) -> Duration:
    result = Duration()
    result.FromMilliseconds(milliseconds)
    return result


# ---- ReceiveMessage, PullMessage ----


@pytest.mark.parametrize(
    "expression",
    [
        FilterExpression(type=FilterType.TAG, expression="||"),
        FilterExpression(type=FilterType.SQL, expression=" "),
        FilterExpression(type=9, expression="*"),  # type: ignore[arg-type]  # unknown on purpose
    ],
)
def test_illegal_filter_expression(expression: FilterExpression) -> None:
    """StatusCode table: ReceiveMessage × ILLEGAL_FILTER_EXPRESSION."""
    refused(Code.ILLEGAL_FILTER_EXPRESSION, validation.filter_of, expression)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (FilterExpression(), ("TAG", "")),
        (FilterExpression(type=FilterType.TAG, expression="a || b"), ("TAG", "a || b")),
        (FilterExpression(expression="a"), ("TAG", "a")),
        (FilterExpression(type=FilterType.SQL, expression="p > 1"), ("SQL92", "p > 1")),
    ],
)
def test_legal_filter_expression(expression: FilterExpression, expected: tuple[str, str]) -> None:
    assert validation.filter_of(expression) == expected


@pytest.mark.parametrize("milliseconds", [0, 9_999, 12 * HOUR_MS + 1, -1])
def test_illegal_invisible_time_of_a_receive(milliseconds: int) -> None:
    """StatusCode table: ReceiveMessage × ILLEGAL_INVISIBLE_TIME; 10 s to 12 h are allowed."""
    asked = duration(milliseconds)
    refused(Code.ILLEGAL_INVISIBLE_TIME, validation.receive_duration_ms, asked, False, OPTIONS)


def test_receive_without_invisible_time_needs_auto_renew() -> None:
    refused(Code.ILLEGAL_INVISIBLE_TIME, validation.receive_duration_ms, None, False, OPTIONS)
    assert validation.receive_duration_ms(None, True, OPTIONS) == 60_000


@pytest.mark.parametrize("milliseconds", [10_000, 12 * HOUR_MS])
def test_legal_invisible_time_of_a_receive(milliseconds: int) -> None:
    asked = duration(milliseconds)
    assert validation.receive_duration_ms(asked, False, OPTIONS) == milliseconds


@pytest.mark.parametrize(
    ("requested_ms", "remaining_s", "expected_ms"),
    [
        (20_000, 23.0, 20_000),  # most SDKs: the deadline is 3 s behind
        (40_000, 43.0, 20_000),  # the server's longest
        (1_000, 4.0, 1_000),  # a short poll stays short
        (0, 3.0, 0),
        (20_000, 20.0, 18_000),  # Rust: the deadline is the polling time
        (20_000, 10.0, 9_000),
        (20_000, 3.0, 2_500),
        (20_000, 0.6, 300),
        (20_000, None, 20_000),
        (None, 23.0, 20_000),  # Go, C++: the deadline only
        (None, 13.0, 11_500),
        (None, 3.0, 1_500),  # Go with its default: the reference refuses this one
        (None, None, 20_000),
        (None, 1.0, 0),
    ],
)
def test_duration_of_a_long_poll(
    requested_ms: int | None, remaining_s: float | None, expected_ms: int
) -> None:
    requested = None if requested_ms is None else duration(requested_ms)
    assert validation.polling_ms(requested, remaining_s, 3_000, OPTIONS) == expected_ms


def test_illegal_polling_time() -> None:
    """StatusCode table: ReceiveMessage × ILLEGAL_POLLING_TIME."""
    refused(Code.ILLEGAL_POLLING_TIME, validation.polling_ms, duration(-1), 9.0, 3_000, OPTIONS)


@given(
    st.one_of(st.none(), st.integers(0, 10**9)),
    st.one_of(st.none(), st.floats(0, 10**6)),
    st.integers(0, 10**6),
)
def test_long_poll_ends_before_the_deadline(
    requested_ms: int | None, remaining_s: float | None, timeout_ms: int
) -> None:
    requested = None if requested_ms is None else duration(requested_ms)
    held = validation.polling_ms(requested, remaining_s, timeout_ms, OPTIONS)
    assert 0 <= held <= 20_000
    assert remaining_s is None or held <= remaining_s * 1_000


# ---- ChangeInvisibleDuration, UpdateOffset ----


@pytest.mark.parametrize("milliseconds", [-1, 12 * HOUR_MS + 1])
def test_illegal_invisible_time_of_a_change(milliseconds: int) -> None:
    """StatusCode table: ChangeInvisibleDuration × ILLEGAL_INVISIBLE_TIME."""
    asked = duration(milliseconds)
    refused(Code.ILLEGAL_INVISIBLE_TIME, validation.change_duration_ms, asked, OPTIONS)


def test_text_of_an_illegal_invisible_time_is_rocketmq_s() -> None:
    for asked_ms, begin in [
        (9_999, "the invisibleTime is too small. min is 10000"),
        (12 * HOUR_MS + 1, "the invisibleTime is too large. max is 43200000"),
    ]:
        with pytest.raises(Refused) as caught:
            validation.receive_duration_ms(duration(asked_ms), False, OPTIONS)
        assert caught.value.message.startswith(begin)


@pytest.mark.parametrize("milliseconds", [0, 1, 12 * HOUR_MS])
def test_legal_invisible_time_of_a_change(milliseconds: int) -> None:
    assert validation.change_duration_ms(duration(milliseconds), OPTIONS) == milliseconds


def test_illegal_offset() -> None:
    """StatusCode table: UpdateOffset × ILLEGAL_OFFSET."""
    refused(Code.ILLEGAL_OFFSET, validation.check_offset, -1)
    validation.check_offset(0)
