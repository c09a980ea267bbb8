"""Describe consumer groups and their progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from aerobee.broker.v1 import admin_pb2, offset_pb2, pop_pb2

from aerobee_client.admin.descriptions.like import like
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.retry_policy import ExponentialRetryPolicy


@dataclass(frozen=True, slots=True)
class GroupDescription:
    consumer_group: str
    # Deliveries before a message is dead-lettered.
    max_attempts: int
    # Delay before each retry; empty for the broker's delay levels from level 3 on.
    retry_delays_ms: tuple[int, ...]
    consume_enable: bool
    # If False, consumers that pop begin at the end of a topic.
    consume_from_min_enable: bool
    # The order of consumption: auto (topics of the type FIFO in order), on or off.
    order: str
    brokers: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)
    # Replaces `retry_delays_ms`.
    exponential_retry: ExponentialRetryPolicy | None = None

    @classmethod
    def of(cls, config: admin_pb2.GroupConfig, brokers: list[str]) -> Self:
        retry, order = config.exponential_retry, config.order
        return like(
            cls,
            config,
            max_attempts=config.retry_max_times + 1,
            order=ConsumeOrder.of(order, orderly=config.consume_message_orderly).name.lower(),
            brokers=tuple(brokers),
            exponential_retry=(
                ExponentialRetryPolicy(retry.initial_ms, retry.max_ms, retry.multiplier)
                if config.HasField("exponential_retry")
                else None
            ),
        )


@dataclass(frozen=True, slots=True)
class QueueProgress:
    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    # None: the group has not consumed from this queue, or has an offset in each of its lite topics.
    consumer_offset: int | None
    # Messages that are stored and not consumed yet.
    lag: int
    # Store time of the last consumed message; 0 if unknown.
    last_timestamp_ms: int
    # The member that owns the queue; "" if unknown.
    client_id: str

    @classmethod
    def of(cls, broker_name: str, stats: offset_pb2.QueueConsumeStats) -> Self:
        offset = stats.consumer_offset if stats.HasField("consumer_offset") else None
        consumed_to = stats.min_offset if offset is None else max(offset, stats.min_offset)
        lag = stats.lag if stats.HasField("lag") else max(stats.max_offset - consumed_to, 0)
        return like(cls, stats, broker_name=broker_name, consumer_offset=offset, lag=lag)


@dataclass(frozen=True, slots=True)
class BlockedMessageGroup:
    """A message group, and the message that blocks its other messages."""

    topic: str
    broker_name: str
    queue_id: int
    # "" for the messages of the queue without a message group.
    message_group: str
    queue_offset: int
    # "" if its record cannot be read.
    message_id: str
    # Its deliveries so far.
    attempt: int
    # Messages in flight behind it.
    waiting: int
    # The time of its first delivery; after a restart of the broker, of its last delivery.
    since_timestamp_ms: int
    # When it is delivered again; 0 for the next receive.
    next_try_timestamp_ms: int
    # The client that received it last; "" if unknown.
    client_id: str

    @classmethod
    def of(cls, broker_name: str, group: pop_pb2.BlockedMessageGroup) -> Self:
        return like(
            cls,
            group,
            broker_name=broker_name,
            since_timestamp_ms=group.since_ms,
            next_try_timestamp_ms=group.next_try_ms,
        )
