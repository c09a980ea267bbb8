"""Define the options of push and pull consumers: names, defaults, bounds."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from typing import ClassVar, Literal

from aerobee.broker.v1 import client_pb2

from aerobee_client.observing.assignment_callbacks import OnQueues
from aerobee_client.options.bounds import MAX_INT32, Bounds, check_bounds
from aerobee_client.options.reading import ReadingOptions, ReadingSettings
from aerobee_wire.status import invalid_parameter

SUSPEND_TIME = timedelta(seconds=1)
MIN_SUSPEND_S, MAX_SUSPEND_S = 0.01, 30


class MessageModel(Enum):
    """Which members of a group get a message."""

    # One member: the queues are divided among the members.
    CLUSTERING = client_pb2.CLUSTERING
    # Every member, with its own offsets. A failed message is not retried on the broker.
    BROADCASTING = client_pb2.BROADCASTING


class ConsumerSettings(ReadingSettings, total=False):
    """The keyword arguments of a push consumer; for defaults see ConsumerOptions."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ReadingOptions):
    """The options of push consumers, with RocketMQ's names and defaults."""

    message_model: MessageModel = MessageModel.CLUSTERING
    # BROADCASTING only: the file in which the member keeps its offsets, in RocketMQ's format. Only
    # one consumer can use it; a second one is refused. None: offsets are kept in memory, so that
    # each start begins as consume_from_where says.
    offset_file: str | os.PathLike[str] | None = None
    # BROADCASTING only: the maximum number of listener calls with one message. After the last one,
    # the message is logged and skipped.
    broadcast_attempts: int = 1
    # The maximum number of concurrent listener calls.
    concurrency: int = 20
    # The maximum number of messages in one call of a batch listener.
    consume_message_batch_max_size: int = 1
    # Overrides the group's setting. Attempts = this + 1. With `orderly`, -1 is also valid: a
    # message that fails is retried forever, and the messages behind it wait.
    max_reconsume_times: int | None = None
    # If the listener takes longer, the message is sent back. With `orderly`, the consumer waits.
    consume_timeout: timedelta = timedelta(minutes=15)
    # Call one listener at a time for each message queue, in the whole group. The next message
    # follows when the one before it is consumed or dead-lettered. All members of a group must be
    # orderly.
    orderly: bool = False
    # "message_group": one listener at a time for each message group of a queue. Message groups of
    # one queue are consumed concurrently, and a message that fails blocks only its own group.
    order_by: Literal["queue", "message_group"] = "queue"
    # With `orderly`, a message that failed is retried after this time, 10 ms to 30 s.
    # `ReconsumeLater(delay=…)` may request another time within these bounds.
    suspend_time: timedelta = SUSPEND_TIME
    # With `orderly`, False: only `commit` commits what the listener has consumed.
    auto_commit: bool = True
    # Functions or coroutine functions that accept a frozenset of message queues. They are called
    # before this member pulls acquired queues, and when it has stopped pulling lost ones. A
    # rebalance waits up to 30 s for them. A plain function is called in a thread.
    on_assigned: OnQueues | None = None
    on_revoked: OnQueues | None = None

    def __post_init__(self) -> None:
        """Check the options. Raises INVALID_PARAMETER, which names the bounds."""
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


# The bounds of RocketMQ's client. MAX_INT32 is the limit of the wire contract.
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
    """The keyword arguments of a pull consumer; for defaults see PullConsumerOptions."""

    auto_commit: bool
    auto_commit_interval: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerOptions(ReadingOptions):
    """The options of pull consumers, with RocketMQ's defaults, and its names without "millis"."""

    pulls_empty_queues: ClassVar[bool] = True
    # Whether to commit what earlier polls returned every auto_commit_interval and at close.
    auto_commit: bool = True
    auto_commit_interval: timedelta = timedelta(seconds=5)

    # Unlike in ReadingOptions, this limit is set by default.
    pull_threshold_for_all: int | None = 10_000

    def __post_init__(self) -> None:
        """Check the options. Raises INVALID_PARAMETER, which names the bounds."""
        ReadingOptions.__post_init__(self)  # super() does not work in a dataclass with slots
        check_bounds(self, _PULL_CONSUMER_BOUNDS)
