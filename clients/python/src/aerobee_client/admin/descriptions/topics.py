"""Describe topics, their routes and their queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from aerobee.broker.v1 import message_pb2, offset_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin.descriptions.brokers import BrokerDescription
from aerobee_client.admin.descriptions.like import like
from aerobee_client.consuming.decoding import received
from aerobee_client.message import ReceivedMessage

MESSAGE_TYPE = "message.type"  # attribute of a topic


@dataclass(frozen=True, slots=True)
class TopicOnBroker:
    broker_name: str
    address: str
    read_queue_count: int
    write_queue_count: int
    # Bits: 4 read, 2 write.
    permission: int
    order: bool
    attributes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, broker_name: str, address: str, config: namesrv_pb2.TopicConfig) -> Self:
        return like(cls, config, broker_name=broker_name, address=address)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    topic: str
    # NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE or MIXED.
    message_type: str
    brokers: tuple[TopicOnBroker, ...]

    @classmethod
    def of(cls, name: str, brokers: list[TopicOnBroker]) -> Self:
        message_type = brokers[0].attributes.get(MESSAGE_TYPE, "NORMAL")
        return cls(name, message_type, tuple(brokers))


@dataclass(frozen=True, slots=True)
class RouteQueues:
    broker_name: str
    read_queue_count: int
    write_queue_count: int
    permission: int


@dataclass(frozen=True, slots=True)
class RouteDescription:
    topic: str
    queues: tuple[RouteQueues, ...]
    brokers: tuple[BrokerDescription, ...]

    @classmethod
    def of(cls, topic: str, route: namesrv_pb2.TopicRoute) -> Self:
        queues = (like(RouteQueues, data) for data in route.queues)
        return cls(
            topic,
            tuple(sorted(queues, key=lambda data: data.broker_name)),
            tuple(BrokerDescription.of(data) for data in route.brokers),
        )


@dataclass(frozen=True, slots=True)
class QueueStatus:
    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    # The offset of the next message.
    max_offset: int
    # Store times; 0 for an empty queue.
    earliest_timestamp_ms: int
    latest_timestamp_ms: int

    @classmethod
    def of(cls, topic: str, broker_name: str, bounds: offset_pb2.QueueBounds) -> Self:
        return like(cls, bounds, topic=topic, broker_name=broker_name)


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """The queues of a topic on one broker: queue id → lowest and highest offset.

    Queues with ids of `read_queue_count` and above are not readable.
    """

    topic: str
    broker_name: str
    read_queue_count: int
    # Bits: 4 read, 2 write.
    permission: int
    bounds: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, topic: str, broker_name: str, response: offset_pb2.GetQueueOffsetsResponse) -> Self:
        bounds = {queue.queue_id: (queue.min_offset, queue.max_offset) for queue in response.queues}
        return like(cls, response, topic=topic, broker_name=broker_name, bounds=bounds)


@dataclass(frozen=True, slots=True)
class QueueOffset:
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """The topic and groups that a broker got so that it shares the load of a topic.

    `queues`: the number of queues of the topic on this broker.
    """

    broker_name: str
    address: str
    queues: int
    # Consumer groups that were missing there and were created with their settings on other brokers.
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Browsed:
    """Part of a queue.

    `status` is FOUND, NO_NEW_MESSAGE, or OFFSET_MOVED (continue at next_begin_offset).
    """

    status: str
    broker_name: str
    # Concatenated records of the commit log (docs/storage_format.md).
    records: bytes
    message_count: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    # Records before next_begin_offset, from the requested offset on, that failed their check.
    corrupted_count: int

    @classmethod
    def of(cls, broker_name: str, response: message_pb2.PullResponse) -> Self:
        status = message_pb2.PullStatus.Name(response.status)
        return like(cls, response, status=status, broker_name=broker_name)

    def messages(self) -> list[ReceivedMessage]:
        """Decode the records. Raises MESSAGE_CORRUPTED."""
        return received(self.records, self.broker_name)
