"""Brokers, and what each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin.descriptions.like import like


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
class LiveBroker:
    cluster: str
    address: str
    last_update_timestamp_ms: int
    heartbeat_timeout_ms: int


@dataclass(frozen=True, slots=True)
class BrokerConflict:
    """Two processes that have one `brokerId` of one broker name. The `holder` is registered, the
    `newcomer` was rejected within the last two minutes. A store id is "" where the store has none.
    """

    broker_name: str
    number: int
    holder_address: str
    holder_store_id: str
    newcomer_address: str
    newcomer_store_id: str

    @classmethod
    def of(cls, conflict: namesrv_pb2.BrokerConflict) -> Self:
        return cls(
            conflict.broker_name,
            conflict.number,
            conflict.holder.broker_address,
            conflict.holder.store_id,
            conflict.newcomer.broker_address,
            conflict.newcomer.store_id,
        )


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    brokers: tuple[BrokerDescription, ...]
    live: tuple[LiveBroker, ...]
    conflicts: tuple[BrokerConflict, ...] = ()

    @classmethod
    def of(cls, info: namesrv_pb2.GetClusterInfoResponse) -> Self:
        live = (like(LiveBroker, row, address=row.broker_address) for row in info.live_brokers)
        return cls(
            tuple(BrokerDescription.of(data) for data in info.brokers),
            tuple(live),
            tuple(map(BrokerConflict.of, info.conflicts)),
        )


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
    # Its clock as it answered.
    now_timestamp_ms: int
    # Percent used above which expired messages go at any hour; above which, or with fewer bytes
    # free than that, producers are refused.
    disk_max_used_percent: int
    disk_full_percent: int
    disk_min_free_bytes: int
    # What it may hold; 0: unknown.
    memory_limit_bytes: int
    # A file of the commit log expires when all of its records are older, and is deleted in one of
    # these hours of the broker's day.
    file_reserved_time_ms: int
    delete_when: tuple[int, ...]
    commit_log_file_bytes: int
    # When each record that was asked about is deleted for its age at the earliest; 0: never.
    expiry_timestamps_ms: tuple[int, ...]

    @classmethod
    def of(cls, response: admin_pb2.GetBrokerStatusResponse) -> Self:
        return like(cls, response)


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
        lags = tuple(like(GroupLag, lag) for lag in response.lags)
        return like(cls, response, broker_name=broker_name, lags=lags)
