"""The results of an admin client: frozen dataclasses, which `dataclasses.asdict` turns into JSON.

Times are milliseconds since the epoch, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aerobee_client.consuming.decoding import received
from aerobee_client.message import ReceivedMessage


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


@dataclass(frozen=True, slots=True)
class TopicDescription:
    topic: str
    # NORMAL, FIFO, DELAY, TRANSACTION or MIXED.
    message_type: str
    brokers: tuple[TopicOnBroker, ...]


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    cluster: str
    broker_name: str
    # Broker id → "host:port"; 0 is the master.
    addresses: Mapping[int, str]


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


@dataclass(frozen=True, slots=True)
class GroupDescription:
    consumer_group: str
    # Deliveries before a message is dead-lettered.
    max_attempts: int
    # Before each retry; empty: the broker's delay levels from level 3 on.
    retry_delays_ms: tuple[int, ...]
    consume_enable: bool
    fifo: bool
    brokers: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)


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

    def messages(self) -> list[ReceivedMessage]:
        """The records decoded. Raises MESSAGE_CORRUPTED."""
        return received(self.records, self.broker_name)
