"""Derive the queues and offsets to read from the filters of a batch query.

The result includes all messages that the filters select. It may include more messages, because
Spark filters the rows again. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from aerobee_spark.reading.offsets import Narrowing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def narrowing_of(filters: Iterable[Filter]) -> Narrowing:
    """Return the topics, queues, offsets and times that the filters of a query leave.

    Filters that this source does not support are ignored; Spark applies them to the rows.
    """
    found = Narrowing()
    for given in filters:
        found = _and(found, given)
    return found


def _and(found: Narrowing, given: Filter) -> Narrowing:
    column = getattr(given, "attribute", ())
    if column == ("topic",):
        values = _values(given)
        return found if values is None else replace(found, topics=_both(found.topics, values))
    if column == ("queueId",):
        values = _values(given)
        return found if values is None else replace(found, queue_ids=_both(found.queue_ids, values))
    if column == ("queueOffset",):
        low, high = _bounds(given)
        return replace(
            found,
            first_offset=_most(found.first_offset, low),
            last_offset=_least(found.last_offset, high),
        )
    if column == ("storeTimestamp",):
        low, high = (None if value is None else _ms(value) for value in _bounds(given))
        return replace(
            found, first_ms=_most(found.first_ms, low), last_ms=_least(found.last_ms, high)
        )
    return found


def _values(given: Filter) -> frozenset[Any] | None:
    """Return the values that a filter allows for its column, or None if it does not list them."""
    if isinstance(given, EqualTo | EqualNullSafe):
        return frozenset((given.value,))
    return frozenset(given.value) if isinstance(given, In) else None


def _bounds(given: Filter) -> tuple[Any, Any]:
    """Return the least and the greatest value that a filter allows; None stands for no limit.

    An exclusive limit is returned like an inclusive limit, because Spark filters again.
    """
    if isinstance(given, EqualTo | EqualNullSafe):
        return given.value, given.value
    if isinstance(given, In):
        values = [value for value in given.value if value is not None]
        return (min(values), max(values)) if values else (None, None)
    if isinstance(given, GreaterThan | GreaterThanOrEqual):
        return given.value, None
    if isinstance(given, LessThan | LessThanOrEqual):
        return None, given.value
    return None, None


def _ms(moment: datetime) -> int:
    """Convert a time to milliseconds since the epoch, rounded down like store times.

    A time without a zone is UTC, because Spark passes UTC without a zone.
    """
    known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (known - _EPOCH) // timedelta(milliseconds=1)


def _both(known: frozenset[Any] | None, more: Iterable[Any]) -> frozenset[Any]:
    return frozenset(more) if known is None else known & frozenset(more)


def _most(known: int | None, other: int | None) -> int | None:
    return other if known is None else known if other is None else max(known, other)


def _least(known: int | None, other: int | None) -> int | None:
    return other if known is None else known if other is None else min(known, other)
