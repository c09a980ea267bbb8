"""What may be set of consumers of lite topics, and where a group goes on in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Literal, TypedDict

from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.options.bounds import MAX_INT64, Bounds, check_bounds, check_value

# Lite topics that another client of an exclusive group has taken over.
OnEvicted = Callable[[Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class OffsetOption:
    """Where a group goes on in a lite topic that a client subscribes to, also if it has been there
    before: `MIN_OFFSET`, `MAX_OFFSET`, `of_offset`, `of_tail`, `of_timestamp`. What it has on lease
    there is void then. `LAST_OFFSET`, the default: where it is; a new group at the first message.

    `begin`: the field of the broker's request, "": none; `value`: its value.
    """

    begin: Literal["", "first", "end", "number", "tail", "stored_since_ms"]
    value: int | bool = True

    LAST_OFFSET: ClassVar[OffsetOption]
    MIN_OFFSET: ClassVar[OffsetOption]  # the first message
    MAX_OFFSET: ClassVar[OffsetOption]  # behind the last one

    @classmethod
    def of_offset(cls, number: int) -> OffsetOption:
        """The message of this number in the lite topic, from 0; behind the last one if there is
        none. Raises INVALID_PARAMETER."""
        check_value("offset", number, 0, MAX_INT64)
        return cls("number", number)

    @classmethod
    def of_tail(cls, count: int) -> OffsetOption:
        """So many messages before the end. Raises INVALID_PARAMETER."""
        check_value("tail", count, 0, MAX_INT64)
        return cls("tail", count)

    @classmethod
    def of_timestamp(cls, time: datetime) -> OffsetOption:
        """The first message that was stored then or later; a naive time is a local one. Raises
        INVALID_PARAMETER for a time before 1970."""
        stored_since_ms = round(time.timestamp() * 1_000)
        check_value("timestamp", stored_since_ms, 0, MAX_INT64)
        return cls("stored_since_ms", stored_since_ms)


OffsetOption.LAST_OFFSET = OffsetOption("")
OffsetOption.MIN_OFFSET = OffsetOption("first")
OffsetOption.MAX_OFFSET = OffsetOption("end")


class LiteConsumerSettings(TypedDict, total=False):
    """The keyword arguments of a lite consumer; meaning and defaults: LiteConsumerOptions."""

    on_evicted: OnEvicted
    request_timeout: timedelta
    interceptors: Sequence[Interceptor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteConsumerOptions:
    """Raises INVALID_PARAMETER that names the bounds."""

    # Called with names of lite topics, on the client's thread, when another client of an exclusive
    # group has taken them over: `lite_topics` has them no more.
    on_evicted: OnEvicted = lambda lite_topics: None
    # Bounds a change of the subscription, an acknowledgement, a change of an invisible duration and
    # a dead letter; while a broker is away they are repeated.
    request_timeout: timedelta = timedelta(seconds=10)
    # Are told of what is received and of what is settled.
    interceptors: Sequence[Interceptor] = ()

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)


_BOUNDS: Bounds = {"request_timeout": (0.001, 86_400)}  # seconds
