"""GetBrokerStatus: the numbers of the running broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerobee.broker.v1 import admin_pb2 as pb

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.gauges import Backlog
from aerobee_broker.disk import Disk
from aerobee_broker.identity import Identity
from aerobee_broker.metadata.drain import Drain
from aerobee_broker.metrics import BrokerMetrics, memory_limit, resident_memory
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.options import HOUR_MS
from aerobee_chassis.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """Reports the numbers of the broker. Counters start with the process."""

    identity: Identity
    store: MessageStore
    metrics: BrokerMetrics
    backlog: Backlog
    drain: Drain
    disk: Disk
    store_path: Path
    options: BrokerOptions
    clock: Clock

    def status(self, physical_offsets: Sequence[int] = ()) -> pb.GetBrokerStatusResponse:
        """Return the status, with the expiries of the records at `physical_offsets`."""
        usage = self.disk.usage(self.store_path)
        identity, metrics, store = self.identity, self.metrics, self.store
        options, now_ms = self.options, self.clock.now_ms()
        expiries = store.cleaning.retention.expiries(physical_offsets, now_ms)
        return pb.GetBrokerStatusResponse(
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            broker_address=identity.address,
            version=identity.version,
            start_timestamp_ms=identity.start_timestamp_ms,
            min_physical_offset=store.min_physical_offset,
            max_physical_offset=store.end_offset,
            flushed_physical_offset=store.flushed_offset,
            read_only_reason=store.flush.read_only_reason,
            messages_in_total=metrics.messages_in,
            messages_out_total=metrics.messages_out,
            dead_letters_total=metrics.dead_letters,
            corrupted_records_total=metrics.corrupted_records,
            store_path=str(self.store_path),
            disk_free_bytes=usage.free,
            disk_total_bytes=usage.used + usage.free,
            parked_pulls=self.backlog.polls.parked_pulls,
            parked_pops=self.backlog.polls.parked_pops,
            delayed_messages=self.backlog.delayed(),
            resident_memory_bytes=resident_memory(),
            draining_since_ms=self.drain.since_ms,
            now_timestamp_ms=now_ms,
            disk_max_used_percent=options.disk_max_used_space_ratio,
            disk_full_percent=options.disk_space_warning_level_ratio,
            disk_min_free_bytes=options.disk_min_free_bytes,
            memory_limit_bytes=memory_limit(),
            file_reserved_time_ms=options.file_reserved_time * HOUR_MS,
            delete_when=options.delete_hours,
            commit_log_file_bytes=options.mapped_file_size_commit_log,
            expiry_timestamps_ms=expiries,
            damaged_ranges=len(store.damage.ranges),
            damaged_bytes=store.damage.damaged_bytes,
        )
