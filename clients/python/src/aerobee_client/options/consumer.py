"""Define the options of push and pull consumers, with their defaults and bounds.

The shared options define where a group starts, how its members divide the queues, and how many
messages are pulled ahead.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from typing import ClassVar, Literal, TypedDict

from aerobee.broker.v1 import client_pb2

from aerobee_client import rebalance
from aerobee_client.credentials import Credentials
from aerobee_client.observing.assignment_callbacks import OnQueues
from aerobee_client.observing.consume_failure import OnError
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.options.bounds import MAX_INT32, MAX_INT64, MIB, Bounds, check_bounds
from aerobee_client.runtime.kinds import checked_class
from aerobee_client.tls import Tls
from aerobee_wire.status import invalid_parameter

SUSPEND_TIME = timedelta(seconds=1)
MIN_SUSPEND_S, MAX_SUSPEND_S = 0.01, 30


@checked_class
@dataclass(frozen=True, slots=True)
class Sql:
    """A condition in SQL92 over the properties of a message, which the broker evaluates.

    A missing property is null. A message matches only if the condition is true. The broker must
    have enablePropertyFilter set, which is the default.

    Example:
        consumer.subscribe("orders", Sql("region = 'eu' AND size > 5"))
    """

    expression: str


class ConsumeFromWhere(Enum):
    """The position where a group starts in a queue for which it has not committed an offset.

    In its retry topic, a group always starts at the first message.
    """

    # Start behind the newest message. As in RocketMQ, if retention has not deleted any message,
    # start at the first one, so that a new group misses no message of a new topic.
    LAST_OFFSET = client_pb2.CONSUME_FROM_LAST_OFFSET
    # Start at the oldest message of the queue.
    FIRST_OFFSET = client_pb2.CONSUME_FROM_FIRST_OFFSET
    # Start at the first message stored at or after consume_timestamp_ms.
    TIMESTAMP = client_pb2.CONSUME_FROM_TIMESTAMP


class ReadingSettings(TypedDict, total=False):
    """Keyword arguments of push and pull consumers; ReadingOptions describes them."""

    pull_batch_size: int
    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int
    strategy: rebalance.Strategy | str
    machine_room: str
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue: int
    pull_threshold_for_topic: int | None
    pull_threshold_size_for_topic: int | None
    pull_threshold_for_all: int | None
    pull_threshold_size_for_all: int | None
    consume_concurrently_max_span: int
    interceptors: Sequence[Interceptor]
    tls: Tls | None
    credentials: Credentials | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options of push and pull consumers, with RocketMQ's names and defaults.

    Only the default of `pull_batch_size` differs; it is 32 or 10 in RocketMQ.
    """

    # If true, a queue without pulled messages is pulled even above the thresholds of its topic and
    # of all queues. Pull consumers need this because the caller may wait for that queue only.
    pulls_empty_queues: ClassVar[bool] = False

    # The maximum number of messages of one pull. A pull costs the same for 32 as for 128.
    pull_batch_size: int = 128
    # Where the group starts in a queue for which it has no committed offset.
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    # The start for TIMESTAMP, in milliseconds since the epoch. None means half an hour before the
    # consumer was created.
    consume_timestamp_ms: int | None = None
    # A function of `rebalance`, the RocketMQ name of one, or a function with the same signature.
    # All members of a group must use the same strategy.
    strategy: rebalance.Strategy | str = rebalance.average
    # The machine room of this member, for strategies that divide queues by room. The names of
    # brokers must be "room@name". The room becomes part of the client id.
    machine_room: str = ""
    # Pulling a message queue pauses while more of its messages than this wait to be consumed.
    pull_threshold_for_queue: int = 1_000
    # The same limit in bytes.
    pull_threshold_size_for_queue: int = 100 * MIB
    # The maximum number of messages for all queues of a topic together. None means no limit.
    pull_threshold_for_topic: int | None = None
    # The same limit in bytes.
    pull_threshold_size_for_topic: int | None = None
    # The maximum number of messages for all queues together. None means no limit.
    pull_threshold_for_all: int | None = None
    # The same limit in bytes.
    pull_threshold_size_for_all: int | None = None
    # Pulling a message queue also pauses while its largest pulled queue offset minus the smallest
    # exceeds this. The committed offset cannot pass one slow message, and messages consumed above
    # it are redelivered after a crash.
    consume_concurrently_max_span: int = 2_000
    # Interceptors that are notified of messages and rebalances.
    interceptors: Sequence[Interceptor] = ()
    # The certificates for TLS to name servers and brokers. Default: those of the environment, else
    # plaintext.
    tls: Tls | None = None
    # The user who signs the calls. Default: that of the environment, else calls are not signed.
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises MqError with the code INVALID_PARAMETER, whose text names the bounds.
        """
        check_bounds(self, _READING_BOUNDS)
        check_machine_room(self.machine_room)
        self.allocation()

    def allocation(self) -> rebalance.Strategy:
        """Return the strategy as a function, even if the option is a name.

        Raises MqError with the code INVALID_PARAMETER if there is no such strategy.
        """
        given = self.strategy
        return rebalance.by_name(given, self.machine_room) if isinstance(given, str) else given


def check_machine_room(name: str) -> None:
    """Check that a machine room can be part of a client id.

    Raises MqError with the code INVALID_PARAMETER if it cannot.
    """
    if not (name.isascii() and name.isprintable()) or "@" in name:
        raise invalid_parameter(
            f"machine_room is {name!r}: give a name in ASCII without @", about="machine_room"
        )


# The bounds of RocketMQ's client. MAX_INT64 is the limit of the protobuf field.
_READING_BOUNDS: Bounds = {
    "pull_batch_size": (1, 1_024),
    "pull_threshold_for_queue": (1, 65_535),
    "pull_threshold_size_for_queue": (1, 1_024 * MIB),
    "pull_threshold_for_topic": (1, 6_553_500),
    "pull_threshold_size_for_topic": (1, 102_400 * MIB),
    "pull_threshold_for_all": (1, 6_553_500),
    "pull_threshold_size_for_all": (1, 102_400 * MIB),
    "consume_concurrently_max_span": (1, 65_535),
    "consume_timestamp_ms": (0, MAX_INT64),
}


class MessageModel(Enum):
    """Determines which members of a group get a message."""

    # One member gets each message, because the queues are divided among the members.
    CLUSTERING = client_pb2.CLUSTERING
    # Every member gets each message and has its own offsets. The broker does not retry a failed
    # message.
    BROADCASTING = client_pb2.BROADCASTING


class ConsumerSettings(ReadingSettings, total=False):
    """The keyword arguments of a push consumer; ConsumerOptions describes them."""

    message_model: MessageModel
    offset_file: str | os.PathLike[str] | None
    broadcast_attempts: int
    concurrency: int
    consume_message_batch_max_size: int
    max_reconsume_times: int
    consume_timeout: timedelta
    orderly: bool
    order_by: Literal["queue", "message_group"]
    suspend_time: timedelta
    auto_commit: bool
    on_assigned: OnQueues | None
    on_revoked: OnQueues | None
    on_error: OnError | None
    enable_trace: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ReadingOptions):
    """The options of push consumers, with RocketMQ's names and defaults."""

    message_model: MessageModel = MessageModel.CLUSTERING
    # BROADCASTING only: the file in which the member keeps its offsets, in RocketMQ's format. Only
    # one consumer can use it; a second one is refused. With None, offsets are kept in memory, so
    # that each start begins at consume_from_where.
    offset_file: str | os.PathLike[str] | None = None
    # BROADCASTING only: the maximum number of listener calls with one message. After the last one,
    # the message is logged and skipped.
    broadcast_attempts: int = 1
    # The maximum number of concurrent listener calls.
    concurrency: int = 20
    # The maximum number of messages in one call of a batch listener.
    consume_message_batch_max_size: int = 1
    # The maximum number of retries, which overrides the group's setting. With `orderly`, -1 is also
    # valid: a message that fails is retried forever, and the messages behind it wait.
    max_reconsume_times: int | None = None
    # If the listener takes longer, the message is sent back. With `orderly`, the consumer waits.
    consume_timeout: timedelta = timedelta(minutes=15)
    # If true, the group calls one listener at a time for each message queue. The next message
    # follows when the previous one is consumed or dead-lettered. All members of a group must use
    # the same value.
    orderly: bool = False
    # With "message_group", one listener at a time is called for each message group of a queue.
    # Message groups of one queue are consumed concurrently, and a message that fails blocks only
    # its own group.
    order_by: Literal["queue", "message_group"] = "queue"
    # With `orderly`, a message that failed is retried after this time, 10 ms to 30 s.
    # `ReconsumeLater(delay=…)` may request another time within these bounds.
    suspend_time: timedelta = SUSPEND_TIME
    # With `orderly`: if False, consumed messages are committed only when `commit` is called.
    auto_commit: bool = True
    # A function or coroutine function that accepts a frozenset of message queues. It is called
    # before this member pulls acquired queues. A rebalance waits up to 30 s for it. A plain
    # function is called in a thread.
    on_assigned: OnQueues | None = None
    # The same for lost queues. The function is called after this member has stopped pulling them.
    on_revoked: OnQueues | None = None
    # A function or coroutine function that accepts a ConsumeFailure. It is called with one failure
    # at a time, after the broker has answered whether the message is redelivered or dead. It is not
    # called for RECONSUME_LATER and ReconsumeLater, unless the message died. A plain function is
    # called in a thread. The consumer waits up to 30 s for it. Its exceptions are logged.
    on_error: OnError | None = None
    # If true, the begin and the end of each listener call are written to the topic
    # RMQ_SYS_TRACE_TOPIC, as RocketMQ's clients do. A broker creates it with traceTopicEnable=true.
    # Records travel in the background, and are dropped while no broker accepts them.
    enable_trace: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises MqError with the code INVALID_PARAMETER, whose text names the bounds.
        """
        ReadingOptions.__post_init__(self)  # super() does not work in a dataclass with slots
        check_bounds(self, _CONSUMER_BOUNDS)
        if self.consume_timeout <= timedelta(0):
            raise invalid_parameter(
                f"consume_timeout is {self.consume_timeout}: give more than 0 s"
            )
        self._check_model()
        self._check_order()

    def _check_order(self) -> None:
        if self.order_by not in ("queue", "message_group"):
            raise invalid_parameter(
                f'order_by is {self.order_by!r}: give "queue" or "message_group"'
            )
        if self.orderly:
            return
        for name, value, needs_order in (
            ("order_by", self.order_by, self.order_by != "queue"),
            ("auto_commit", self.auto_commit, not self.auto_commit),
            ("suspend_time", self.suspend_time, self.suspend_time != SUSPEND_TIME),
            ("max_reconsume_times", self.max_reconsume_times, self.max_reconsume_times == -1),
        ):
            if needs_order:
                raise invalid_parameter(f"{name} is {value!r}: that needs orderly=True")

    def _check_model(self) -> None:
        """Reject options that the chosen message model does not use."""
        broadcasting = self.message_model is MessageModel.BROADCASTING
        alien = ["offset_file", "broadcast_attempts"]
        if broadcasting:
            alien = ["max_reconsume_times", "orderly"]
        defaults = {field.name: field.default for field in fields(self)}
        for name in alien:
            value = getattr(self, name)
            if value != defaults[name]:
                raise invalid_parameter(
                    f"{name} is {value}: a group with message_model {self.message_model.name} has "
                    "no use for it: leave it out, or change message_model"
                )


_CONSUMER_BOUNDS: Bounds = {
    "concurrency": (1, 1_000),
    "broadcast_attempts": (1, MAX_INT32),
    "consume_message_batch_max_size": (1, 1_024),
    "max_reconsume_times": (-1, MAX_INT32),
    "suspend_time": (MIN_SUSPEND_S, MAX_SUSPEND_S),
}
_PULL_CONSUMER_BOUNDS: Bounds = {
    "auto_commit_interval": (1, 86_400),  # seconds
}


class PullConsumerSettings(ReadingSettings, total=False):
    """The keyword arguments of a pull consumer; PullConsumerOptions describes them."""

    auto_commit: bool
    auto_commit_interval: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerOptions(ReadingOptions):
    """The options of pull consumers, with RocketMQ's defaults.

    The names are those of RocketMQ, without "millis".
    """

    pulls_empty_queues: ClassVar[bool] = True
    # If true, offsets of messages that earlier polls returned are committed every
    # auto_commit_interval and at close.
    auto_commit: bool = True
    # With auto_commit: the time between two commits.
    auto_commit_interval: timedelta = timedelta(seconds=5)

    # Unlike in ReadingOptions, this limit is set by default.
    pull_threshold_for_all: int | None = 10_000

    def __post_init__(self) -> None:
        """Check the options.

        Raises MqError with the code INVALID_PARAMETER, whose text names the bounds.
        """
        ReadingOptions.__post_init__(self)  # super() does not work in a dataclass with slots
        check_bounds(self, _PULL_CONSUMER_BOUNDS)
