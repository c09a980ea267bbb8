"""Options of the store. Sizes are in bytes, times in milliseconds.

The defaults are those of RocketMQ, with two exceptions. Consume queues are written in groups
(`unwritten_units`). A checkpoint is taken after a number of bytes or a time, not once a second.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee_wire.properties import MAX_BYTES as MAX_PROPERTIES
from aerobee_wire.record import HEADER_LAYOUTS, HOST_BITS

HOUR_MS = 3_600_000
MAX_TOPIC = 255
MAX_BODY = 32 << 20  # the highest maxMessageSize; a store may have larger old bodies
# The size of a record with IPv6 hosts, a topic length of two bytes, and the longest fields.
MAX_RECORD = HEADER_LAYOUTS[HOST_BITS].size + MAX_BODY + 2 + MAX_TOPIC + 2 + MAX_PROPERTIES


@dataclass(frozen=True, slots=True)
class StoreOptions:
    commit_log_file_size: int = 1 << 30
    commit_log_step: int = 64 << 20  # disk space that a log file reserves at first; later doubled
    consume_queue_file_size: int = 6_000_000  # 300,000 units of 20 bytes
    max_message_size: int = 4 << 20  # limit of a body
    # Append a CRC of the whole record, 20 bytes (enabledAppendPropCRC in RocketMQ, where it is off
    # by default). Without it, damage outside the body is not detected, and a record that is torn
    # within its properties looks whole.
    whole_crc: bool = True
    check_crc_on_recover: bool = True
    # Whether the log has replicas. If so, only records that they confirmed are visible at a start,
    # and a durable record does not count as confirmed.
    replicated: bool = False

    index_enabled: bool = True
    index_slot_count: int = 5_000_000
    index_entry_count: int = 20_000_000

    # Highest number of consume queue units in memory, each 20 bytes: 5 MB at most.
    unwritten_units: int = 262_144
    # Limit of open files, without the log files that receive appends. A read or write of a consume
    # queue uses one file. 10,000 queues work with 512 files, at 10 µs a reopen.
    max_open_files: int = 512

    # After a crash, the log is read from the last checkpoint: at most about this many bytes (1 s).
    checkpoint_bytes: int = 256 << 20
    checkpoint_interval_ms: int = 60_000

    # ---- retention ----
    file_reserved_time_ms: int = 72 * HOUR_MS
    delete_when: tuple[int, ...] = (4,)  # hours of the day, local time
    retain_bytes: int = 0  # limit of the commit log, exceeded by up to one file; 0 is unlimited
    delete_file_batch_max: int = 10  # files that one run deletes at most
    clean_interval_ms: int = 10_000

    # ---- disk watermarks, in percent used of the file system ----
    disk_max_used_ratio: int = 75  # above: expired files are deleted at any hour
    disk_clean_forcibly_ratio: int = 85  # above: deletes unexpired files too; below: ends DISK_FULL
    disk_warning_ratio: int = 90  # above: producers get DISK_FULL
    disk_stop_ratio: int = 95  # above: every append gets DISK_FULL
    clean_file_forcibly: bool = True
    disk_min_free_bytes: int = 0  # below: producers get DISK_FULL; 0 disables this limit

    def __post_init__(self) -> None:
        if self.consume_queue_file_size % 20 or self.consume_queue_file_size <= 0:
            raise ValueError("the size of a consume queue file must be a multiple of 20 bytes")
        if self.commit_log_file_size < 4_096:
            raise ValueError("a commit log file must have at least 4,096 bytes")
        if self.commit_log_step < 1:
            raise ValueError("a commit log file must reserve at least 1 byte")
        if self.index_slot_count < 1 or self.index_entry_count < 2:
            raise ValueError("an index file needs at least 1 slot and 2 entries")
