"""Describe brokers and their contents."""

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
    """Two processes that have the same `brokerId` of the same broker name.

    The `holder` is registered. The `newcomer` was rejected within the last two minutes. A store id
    is "" if the store has none.
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
    """State and counters of a broker, with the fields of GetBrokerStatusResponse."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_address: str
    version: str
    start_timestamp_ms: int
    min_physical_offset: int
    max_physical_offset: int
    flushed_physical_offset: int
    # Why the store does not accept writes; "" if it does.
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
    # Delay queue → messages that are not delivered yet.
    delayed_messages: Mapping[str, int]
    resident_memory_bytes: int
    # When it began to drain; 0 if it accepts messages.
    draining_since_ms: int
    # Its current time when it answered.
    now_timestamp_ms: int
    # Percentages of used disk space. Above the first, expired messages are deleted at any hour.
    # Above the second, or with fewer free bytes than the minimum, producers are refused.
    disk_max_used_percent: int
    disk_full_percent: int
    disk_min_free_bytes: int
    # The memory limit of the process; 0 if unknown.
    memory_limit_bytes: int
    # A file of the commit log expires when all of its records are older than this. It is deleted in
    # one of these hours of the broker's local day.
    file_reserved_time_ms: int
    delete_when: tuple[int, ...]
    commit_log_file_bytes: int
    # The earliest time at which each requested record is deleted for its age; 0 for never.
    expiry_timestamps_ms: tuple[int, ...]
    # Damaged parts of the log that are not repaired.
    damaged_ranges: int
    damaged_bytes: int

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
    """Messages that must leave a broker before it can be removed. Zero counts are left out."""

    broker_name: str
    # When it began to drain; 0 if it accepts messages.
    draining_since_ms: int
    # Not consumed yet, including retry topics.
    lags: tuple[GroupLag, ...]
    # Popped and not acknowledged yet.
    in_flight: int
    # Delay queue → messages that are not delivered yet.
    delayed_messages: Mapping[str, int]
    # Topic → transactions that have not ended.
    half_messages: Mapping[str, int]
    # Topic → messages that no consumer waits for. They are unavailable without the broker.
    dead_letters: Mapping[str, int]
    # Topic → messages, for topics that no group has read.
    unread_topics: Mapping[str, int]

    @property
    def is_empty(self) -> bool:
        """True if no messages remain that depend on this broker."""
        return not (self.lags or self.in_flight or self.delayed_messages or self.half_messages)

    @classmethod
    def of(cls, broker_name: str, response: admin_pb2.GetBacklogResponse) -> Self:
        lags = tuple(like(GroupLag, lag) for lag in response.lags)
        return like(cls, response, broker_name=broker_name, lags=lags)
