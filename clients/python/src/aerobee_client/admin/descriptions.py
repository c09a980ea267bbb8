"""The results of an admin client: frozen dataclasses, which `dataclasses.asdict` turns into JSON.

`of` makes one from messages of the contract. Times are milliseconds since the epoch, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, MutableSequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

from aerobee.broker.v1 import admin_pb2, client_pb2, message_pb2, offset_pb2, pop_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from google.protobuf.message import Message

from aerobee_client.consuming.decoding import received
from aerobee_client.message import ReceivedMessage
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.retry_policy import ExponentialRetryPolicy

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")

MESSAGE_TYPE = "message.type"  # attribute of a topic


def _like(description: type[D], source: Message, **values: Any) -> D:
    """A description with `values`, and for all other fields what `source` has under their names:
    maps as dicts, repeated fields as tuples."""
    for name in [each.name for each in fields(description) if each.name not in values]:
        value = getattr(source, name)
        if isinstance(value, MutableMapping):
            value = dict(value)
        elif isinstance(value, MutableSequence):
            value = tuple(value)
        values[name] = value
    return description(**values)


@dataclass(frozen=True, slots=True)
class Created:
    """A topic or group on one broker. `created`: False when it existed already."""

    broker_name: str
    address: str
    created: bool
    # Name servers that learn of it with the next registration of the broker.
    unreachable_namesrvs: tuple[str, ...] = ()


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
        return _like(cls, config, broker_name=broker_name, address=address)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    topic: str
    # NORMAL, FIFO, DELAY, TRANSACTION or MIXED.
    message_type: str
    brokers: tuple[TopicOnBroker, ...]

    @classmethod
    def of(cls, name: str, brokers: list[TopicOnBroker]) -> Self:
        message_type = brokers[0].attributes.get(MESSAGE_TYPE, "NORMAL")
        return cls(name, message_type, tuple(brokers))


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    cluster: str
    broker_name: str
    # Broker id → "host:port"; 0 is the master.
    addresses: Mapping[int, str]

    @classmethod
    def of(cls, data: namesrv_pb2.BrokerData) -> Self:
        return cls(data.cluster, data.broker_name, dict(sorted(data.addresses.items())))


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
        queues = (_like(RouteQueues, data) for data in route.queues)
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
    # Store times; 0 in an empty queue.
    earliest_timestamp_ms: int
    latest_timestamp_ms: int

    @classmethod
    def of(cls, topic: str, broker_name: str, bounds: offset_pb2.QueueBounds) -> Self:
        return _like(cls, bounds, topic=topic, broker_name=broker_name)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    consumer_group: str
    # Deliveries before a message is dead-lettered.
    max_attempts: int
    # Before each retry; empty: the broker's delay levels from level 3 on.
    retry_delays_ms: tuple[int, ...]
    consume_enable: bool
    # False: consumers that pop begin at the end of a topic.
    consume_from_min_enable: bool
    # In which it consumes: auto (topics of the type FIFO in order), on or off.
    order: str
    brokers: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)
    # In place of `retry_delays_ms`.
    exponential_retry: ExponentialRetryPolicy | None = None

    @classmethod
    def of(cls, config: admin_pb2.GroupConfig, brokers: list[str]) -> Self:
        retry, order = config.exponential_retry, config.order
        return _like(
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
class ClientDescription:
    client_id: str
    address: str
    language: str
    version: str
    last_update_timestamp_ms: int
    producer_groups: tuple[str, ...]
    consumer_groups: tuple[str, ...]
    # Topic → expression.
    subscriptions: Mapping[str, str]
    broker_name: str

    @classmethod
    def of(cls, broker_name: str, info: client_pb2.ClientInfo) -> Self:
        return _like(
            cls,
            info,
            consumer_groups=tuple(consumer.consumer_group for consumer in info.consumers),
            subscriptions={
                subscription.topic: subscription.expression
                for consumer in info.consumers
                for subscription in consumer.subscriptions
            },
            broker_name=broker_name,
        )


@dataclass(frozen=True, slots=True)
class QueueProgress:
    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    # None: the group has not consumed from this queue.
    consumer_offset: int | None
    # Messages that are stored and not consumed yet.
    lag: int
    # Store time of the last message consumed; 0: unknown.
    last_timestamp_ms: int
    # The member that owns the queue; "": unknown.
    client_id: str

    @classmethod
    def of(cls, broker_name: str, stats: offset_pb2.QueueConsumeStats) -> Self:
        offset = stats.consumer_offset if stats.HasField("consumer_offset") else None
        consumed_to = stats.min_offset if offset is None else max(offset, stats.min_offset)
        lag = max(stats.max_offset - consumed_to, 0)
        return _like(cls, stats, broker_name=broker_name, consumer_offset=offset, lag=lag)


@dataclass(frozen=True, slots=True)
class BlockedMessageGroup:
    """A message group, and the message that the others of it wait for."""

    topic: str
    broker_name: str
    queue_id: int
    # "": the messages of the queue that have none.
    message_group: str
    queue_offset: int
    # "": its record cannot be read.
    message_id: str
    # Its deliveries so far.
    attempt: int
    # Messages in flight behind it.
    waiting: int
    # When it was first delivered; after a start of the broker, when last.
    since_timestamp_ms: int
    # When it is delivered again; 0: at the next receive.
    next_try_timestamp_ms: int
    # Who received it last; "": unknown.
    client_id: str

    @classmethod
    def of(cls, broker_name: str, group: pop_pb2.BlockedMessageGroup) -> Self:
        return _like(
            cls,
            group,
            broker_name=broker_name,
            since_timestamp_ms=group.since_ms,
            next_try_timestamp_ms=group.next_try_ms,
        )


@dataclass(frozen=True, slots=True)
class QueueOffset:
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class LiveBroker:
    cluster: str
    address: str
    last_update_timestamp_ms: int
    heartbeat_timeout_ms: int


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    brokers: tuple[BrokerDescription, ...]
    live: tuple[LiveBroker, ...]

    @classmethod
    def of(cls, info: namesrv_pb2.GetClusterInfoResponse) -> Self:
        live = (_like(LiveBroker, row, address=row.broker_address) for row in info.live_brokers)
        return cls(tuple(BrokerDescription.of(data) for data in info.brokers), tuple(live))


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """State and counters of a broker; the fields are those of GetBrokerStatusResponse."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_address: str
    version: str
    start_timestamp_ms: int
    min_physical_offset: int
    max_physical_offset: int
    flushed_physical_offset: int
    # Why the store takes no writes; "": it takes them.
    read_only_reason: str
    messages_in_total: int
    messages_out_total: int
    dead_letters_total: int
    corrupted_records_total: int
    store_path: str
    disk_free_bytes: int
    disk_total_bytes: int
    parked_pulls: int
    parked_pops: int
    # Delay queue → messages not delivered yet.
    delayed_messages: Mapping[str, int]
    resident_memory_bytes: int
    # When it began to drain; 0: it takes messages.
    draining_since_ms: int

    @classmethod
    def of(cls, response: admin_pb2.GetBrokerStatusResponse) -> Self:
        return _like(cls, response)


@dataclass(frozen=True, slots=True)
class GroupLag:
    consumer_group: str
    topic: str
    messages: int


@dataclass(frozen=True, slots=True)
class BrokerBacklog:
    """What has yet to leave a broker before it can be removed; in messages, only what is not 0."""

    broker_name: str
    # When it began to drain; 0: it takes messages.
    draining_since_ms: int
    # Not consumed yet, retry topics included.
    lags: tuple[GroupLag, ...]
    # Popped and not acknowledged yet.
    in_flight: int
    # Delay queue → messages not delivered yet.
    delayed_messages: Mapping[str, int]
    # Topic → transactions that have not ended.
    half_messages: Mapping[str, int]
    # Topic → messages that nobody waits for, and that are out of reach without the broker.
    dead_letters: Mapping[str, int]
    # The same of topics that no group has read.
    unread_topics: Mapping[str, int]

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits for this broker any more."""
        return not (self.lags or self.in_flight or self.delayed_messages or self.half_messages)

    @classmethod
    def of(cls, broker_name: str, response: admin_pb2.GetBacklogResponse) -> Self:
        lags = tuple(_like(GroupLag, lag) for lag in response.lags)
        return _like(cls, response, broker_name=broker_name, lags=lags)


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """What a broker got so that it shares the load of a topic. `queues`: of the topic there."""

    broker_name: str
    address: str
    queues: int
    # Consumer groups that it lacked, and got with the settings that they have elsewhere.
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Browsed:
    """Part of a queue. `status`: FOUND, NO_NEW_MESSAGE, or OFFSET_MOVED (read on from
    next_begin_offset)."""

    status: str
    broker_name: str
    # Concatenated records of the commit log (docs/storage_format.md).
    records: bytes
    message_count: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    # Records between the asked offset and next_begin_offset that failed their check.
    corrupted_count: int

    @classmethod
    def of(cls, broker_name: str, response: message_pb2.PullResponse) -> Self:
        status = message_pb2.PullStatus.Name(response.status)
        return _like(cls, response, status=status, broker_name=broker_name)

    def messages(self) -> list[ReceivedMessage]:
        """The records decoded. Raises MESSAGE_CORRUPTED."""
        return received(self.records, self.broker_name)
