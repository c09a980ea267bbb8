"""Define the options of consumers that receive on lease: simple consumers and lite consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Literal, TypedDict

from aerobee_client.credentials import Credentials
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.options.bounds import (
    MAX_INT64,
    Bounds,
    check_bounds,
    check_duration,
    check_value,
)
from aerobee_client.options.consumer import ConsumeFromWhere, check_machine_room
from aerobee_client.runtime.kinds import checked_class
from aerobee_client.tls import Tls
from aerobee_wire.status import invalid_parameter

MAX_MESSAGES = 32  # per receive, as in RocketMQ
MAX_INVISIBLE_S = 43_200  # 12 h
MAX_WAIT_S = 86_400

_BOUNDS: Bounds = {"request_timeout": (0.001, 86_400)}  # seconds

# Called with the lite topics that another client of an exclusive group has taken over.
OnEvicted = Callable[[Sequence[str]], None]


class SimpleConsumerSettings(TypedDict, total=False):
    """The keyword arguments of a simple consumer; SimpleConsumerOptions describes them."""

    fifo: bool
    consume_from_where: ConsumeFromWhere
    request_timeout: timedelta
    machine_room: str
    interceptors: Sequence[Interceptor]
    tls: Tls | None
    credentials: Credentials | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerOptions:
    """The options of a simple consumer.

    Raises MqError with the code INVALID_PARAMETER, whose text names the bounds.
    """

    # Whether the application consumes the messages of one receive in order. This matters if the
    # group consumes in order (a topic of the type FIFO). If true, one receive may return several
    # messages of a message group, otherwise at most one.
    fifo: bool = False
    # Where the group starts in a queue for which it has no offset. TIMESTAMP is not supported.
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    # The time limit of a call that acknowledges a message, dead-letters it or changes its invisible
    # duration. The client retries the call while the broker is unavailable.
    request_timeout: timedelta = timedelta(seconds=10)
    # The machine room of this member. The names of brokers must be "room@name". The member receives
    # from brokers of its room, and of rooms without members of the group. The room becomes part of
    # the client id. With "", the member receives from all brokers.
    machine_room: str = ""
    # Are notified of received and settled messages.
    interceptors: Sequence[Interceptor] = ()
    # The certificates for TLS to name servers and brokers. Default: those of the environment, else
    # plaintext.
    tls: Tls | None = None
    # The user who signs the calls. Default: that of the environment, else calls are not signed.
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)
        check_machine_room(self.machine_room)
        if self.consume_from_where is ConsumeFromWhere.TIMESTAMP:
            raise invalid_parameter(
                "consume_from_where is TIMESTAMP: a simple consumer starts at LAST_OFFSET or "
                "FIRST_OFFSET; reset the offsets of its group to a time instead"
            )


def check_receive(max_messages: int, invisible_duration: timedelta, wait: timedelta) -> None:
    """Check the arguments of a receive.

    Raises MqError with the code INVALID_PARAMETER, whose text names the bounds.
    """
    check_value("max_messages", max_messages, 1, MAX_MESSAGES)
    check_duration("invisible_duration", invisible_duration, 0.001, MAX_INVISIBLE_S)
    check_duration("wait", wait, 0, MAX_WAIT_S)


@checked_class
@dataclass(frozen=True, slots=True)
class OffsetOption:
    """The position in a lite topic at which a group starts when a client subscribes to it.

    The position applies even if the group has read the lite topic before. Leases that the group has
    on messages of the lite topic become invalid. With `LAST_OFFSET`, the default, the group resumes
    at its position, and a new group starts at the first message. The other options are `MIN_OFFSET`
    (first message), `MAX_OFFSET` (behind the last message), `of_offset`, `of_tail` and
    `of_timestamp`.

    Attributes:
        begin: The field of the request to the broker; "" for none.
        value: The value of that field.
    """

    begin: Literal["", "first", "end", "number", "tail", "stored_since_ms"]
    value: int | bool = True

    LAST_OFFSET: ClassVar[OffsetOption]
    MIN_OFFSET: ClassVar[OffsetOption]  # the first message
    MAX_OFFSET: ClassVar[OffsetOption]  # behind the last one

    @classmethod
    def of_offset(cls, number: int) -> OffsetOption:
        """Start at the message with this number in the lite topic.

        Args:
            number: 0 or more. If no message has this number, the group starts behind the last
                message.

        Raises:
            MqError: INVALID_PARAMETER for a negative number.
        """
        check_value("offset", number, 0, MAX_INT64)
        return cls("number", number)

    @classmethod
    def of_tail(cls, count: int) -> OffsetOption:
        """Start `count` messages before the end of the lite topic.

        Args:
            count: The number of messages, 0 or more.

        Raises:
            MqError: INVALID_PARAMETER for a negative number.
        """
        check_value("tail", count, 0, MAX_INT64)
        return cls("tail", count)

    @classmethod
    def of_timestamp(cls, time: datetime) -> OffsetOption:
        """Start at the first message that was stored at this time or later.

        Args:
            time: A time; without a time zone, it is local time.

        Raises:
            MqError: INVALID_PARAMETER for a time before 1970.
        """
        stored_since_ms = round(time.timestamp() * 1_000)
        check_value("timestamp", stored_since_ms, 0, MAX_INT64)
        return cls("stored_since_ms", stored_since_ms)


OffsetOption.LAST_OFFSET = OffsetOption("")
OffsetOption.MIN_OFFSET = OffsetOption("first")
OffsetOption.MAX_OFFSET = OffsetOption("end")


class LiteConsumerSettings(TypedDict, total=False):
    """The keyword arguments of a lite consumer; LiteConsumerOptions describes them."""

    on_evicted: OnEvicted
    request_timeout: timedelta
    interceptors: Sequence[Interceptor]
    tls: Tls | None
    credentials: Credentials | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteConsumerOptions:
    """The options of a lite consumer.

    Raises MqError with the code INVALID_PARAMETER, whose text names the bounds.
    """

    # Called on the client's thread with the lite topics that another client of an exclusive group
    # has taken over. `lite_topics` no longer contains them.
    on_evicted: OnEvicted = lambda lite_topics: None
    # The time limit of a call that changes the subscription, acknowledges or dead-letters a
    # message, or changes its invisible duration. The client retries it while a broker is
    # unavailable.
    request_timeout: timedelta = timedelta(seconds=10)
    # Are notified of received and settled messages.
    interceptors: Sequence[Interceptor] = ()
    # The certificates for TLS to name servers and brokers. Default: those of the environment, else
    # plaintext.
    tls: Tls | None = None
    # The user who signs the calls. Default: that of the environment, else calls are not signed.
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)
