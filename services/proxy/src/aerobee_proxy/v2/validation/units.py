"""Durations and times of requests in milliseconds. Pure."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

_MAX_MS = 10**18 - 1  # beyond any real time, and still a number that brokers accept


def milliseconds(value: Duration | Timestamp) -> int:
    """Return a duration, or the time since the epoch, in milliseconds.

    Rounded down, and limited to 18 digits.
    """
    found = value.seconds * 1_000 + value.nanos // 1_000_000
    if -_MAX_MS <= found <= _MAX_MS:
        return found
    return _MAX_MS if found > 0 else -_MAX_MS


def delivery_ms(delivery: Timestamp) -> int:
    """Return the first whole millisecond since the epoch that is not before `delivery`."""
    return milliseconds(delivery) + (delivery.nanos % 1_000_000 > 0)
