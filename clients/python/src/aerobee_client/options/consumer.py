"""What may be set of push consumers: names, defaults, bounds."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum

from aerobee.broker.v1 import client_pb2

from aerobee_client.options.bounds import MAX_INT32, Bounds, check_bounds
from aerobee_client.options.reading import ReadingOptions, ReadingSettings
from aerobee_wire.status import Code, MqError


class MessageModel(Enum):
    """Which members of a group get a message."""

    # One: the queues are divided among the members.
    CLUSTERING = client_pb2.CLUSTERING
    # Every one, with offsets of its own. A failed message is not retried on the broker.
    BROADCASTING = client_pb2.BROADCASTING


class ConsumerSettings(ReadingSettings, total=False):
    """The keyword arguments of a push consumer; meaning and defaults: ConsumerOptions."""

    message_model: MessageModel
    offset_file: str | os.PathLike[str] | None
    broadcast_attempts: int
    concurrency: int
    consume_message_batch_max_size: int
    max_reconsume_times: int
    consume_timeout: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ReadingOptions):
    """RocketMQ's names and defaults."""

    message_model: MessageModel = MessageModel.CLUSTERING
    # Of a broadcasting member: the file in which it keeps its offsets, in RocketMQ's form. It is
    # for one consumer: a second one is refused. None: in memory, so that each start begins as
    # consume_from_where says.
    offset_file: str | os.PathLike[str] | None = None
    # Of a broadcasting member: calls of the listener with a message, at most; then it is logged and
    # passed over.
    broadcast_attempts: int = 1
    # Calls of the listener at a time.
    concurrency: int = 20
    # Messages of one call of a batch listener, at most.
    consume_message_batch_max_size: int = 1
    # Overrides the group's own. Attempts = this + 1.
    max_reconsume_times: int | None = None
    # A message whose listener takes longer is sent back.
    consume_timeout: timedelta = timedelta(minutes=15)

    def __post_init__(self) -> None:
        """Raises INVALID_PARAMETER that names the bounds."""
        ReadingOptions.__post_init__(self)  # super() does not work in a dataclass with slots
        check_bounds(self, _CONSUMER_BOUNDS)
        if self.consume_timeout <= timedelta(0):
            raise MqError(
                Code.INVALID_PARAMETER,
                f"consume_timeout is {self.consume_timeout}: give more than 0 s",
            )
        self._check_model()

    def _check_model(self) -> None:
        """Options of one message model that are given for the other one."""
        broadcasting = self.message_model is MessageModel.BROADCASTING
        alien = ["max_reconsume_times"] if broadcasting else ["offset_file", "broadcast_attempts"]
        defaults = {field.name: field.default for field in fields(self)}
        for name in alien:
            value = getattr(self, name)
            if value != defaults[name]:
                raise MqError(
                    Code.INVALID_PARAMETER,
                    f"{name} is {value}: a group with message_model {self.message_model.name} has "
                    "no use for it: leave it out, or change message_model",
                )


# As in RocketMQ's client; the last is what the contract has room for.
_CONSUMER_BOUNDS: Bounds = {
    "concurrency": (1, 1_000),
    "broadcast_attempts": (1, MAX_INT32),
    "consume_message_batch_max_size": (1, 1_024),
    "max_reconsume_times": (0, MAX_INT32),
}
