"""Validate consumers' requests: filters, invisible durations, long polls, offsets."""

from __future__ import annotations

from apache.rocketmq.v2.definition_pb2 import Code, FilterExpression, FilterType
from google.protobuf.duration_pb2 import Duration

from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.status import Refused
from aerobee_proxy.v2.validation.units import milliseconds
from aerobee_wire import tags
from aerobee_wire.status import MqError

# A long poll ends before the client's deadline, so that a busy proxy still answers in time. It ends
# earlier by a tenth of the remaining time, within these limits.
MIN_RESERVE_MS, MAX_RESERVE_MS = 500, 2_000


def filter_of(expression: FilterExpression) -> tuple[str, str]:
    """Return ("TAG" or "SQL92", expression).

    A tag expression is parsed here. SQL92 is parsed by brokers only.
    """
    if expression.type == FilterType.SQL:
        if not expression.expression.strip():
            raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, "the SQL92 filter is empty")
        return "SQL92", expression.expression
    if expression.type not in (FilterType.TAG, FilterType.FILTER_TYPE_UNSPECIFIED):
        raise Refused(
            Code.ILLEGAL_FILTER_EXPRESSION, "the filter is of no known type: use TAG or SQL"
        )
    try:
        tags.parse_expression(expression.expression)
    except MqError as error:
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, error.message) from None
    return "TAG", expression.expression


def receive_duration_ms(duration: Duration | None, auto_renew: bool, options: ProxyOptions) -> int:
    """Return the invisible duration of messages to receive.

    With `auto_renew`, it is the proxy's default.
    """
    if auto_renew:
        return options.default_invisible_time_mills
    low, high = options.min_invisible_time_mills_for_recv, options.max_invisible_time_mills
    return _invisible_ms(duration or Duration(), low, high)


def change_duration_ms(duration: Duration, options: ProxyOptions) -> int:
    """Return a new invisible duration; 0 makes the message visible at once."""
    return _invisible_ms(duration, 0, options.max_invisible_time_mills)


def polling_ms(
    requested: Duration | None,
    remaining_s: float | None,
    request_timeout_ms: int,
    options: ProxyOptions,
) -> int:
    """Return how long to hold a long poll: as the client asks, but ending before its deadline.

    `remaining_s` is the time until the deadline of the call. Two SDKs send only that deadline:
    their poll ends half a request timeout before it.
    """
    longest = options.grpc_client_consumer_max_long_polling_timeout_millis
    remaining = None if remaining_s is None else int(remaining_s * 1_000)
    if requested is not None:
        wanted = milliseconds(requested)
        if wanted < 0:
            raise Refused(Code.ILLEGAL_POLLING_TIME, "the long-polling timeout is below zero")
    else:
        wanted = longest if remaining is None else remaining - request_timeout_ms // 2
    if remaining is not None:
        reserve = max(MIN_RESERVE_MS, min(remaining // 10, MAX_RESERVE_MS))
        wanted = min(wanted, remaining - min(reserve, remaining // 2))
    return max(0, min(wanted, longest))


def check_offset(offset: int) -> None:
    if offset < 0:
        raise Refused(Code.ILLEGAL_OFFSET, f"invalid queue offset {offset}: offsets start at 0")


def _invisible_ms(duration: Duration, low: int, high: int) -> int:
    asked = milliseconds(duration)
    if low <= asked <= high:
        return asked
    # RocketMQ's proxy uses these words, and users of SDKs compare the text with them.
    problem = f"small. min is {low}" if asked < low else f"large. max is {high}"
    raise Refused(
        Code.ILLEGAL_INVISIBLE_TIME,
        f"the invisibleTime is too {problem} ms, and the request says {asked} ms",
    )
