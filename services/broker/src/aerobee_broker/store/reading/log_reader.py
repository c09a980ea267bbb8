"""Reads the visible part of the commit log by physical offset, without using queues.

A single failed read does not count as damage, because a disk may fail occasionally. The read at one
physical offset must fail `_MAX_FAILURES` times before the bytes there count as damaged. After the
start, the time between the first and the last failure must also be at least `_RETRY_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from aerobee_broker.errors import (
    SHORTAGES,
    MessageCorrupted,
    MessageNotFound,
    RepairPending,
    TransientReadError,
)
from aerobee_broker.store.damage import DamageRegister
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.messages import LOST_SIZE
from aerobee_broker.store.options import MAX_RECORD
from aerobee_wire import record
from aerobee_wire.record import CorruptRecord, Record

MAX_RUN_BYTES = 1 << 20  # of neighbouring records that one call reads
_MAX_FAILURES = 3
_RETRY_MS = 60_000
_REMEMBERED = 10_000  # failed reads to remember
_MAGICS = (record.MAGIC_V1, record.MAGIC_V2)
_IDENTITY = record.HEADER_LAYOUT.view("total_size", "magic_code", "physical_offset")
_SYS_FLAG = record.HEADER_LAYOUT.view("sys_flag")
_STORE_TIMESTAMP = {  # by the host bits of the sys flag
    bits: layout.view("store_timestamp_ms") for bits, layout in record.HEADER_LAYOUTS.items()
}


class LogReader:
    def __init__(
        self,
        log: CommitLog,
        dispatch: Dispatch,
        damage: DamageRegister,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._dispatch = dispatch
        self._damage = damage
        self._monotonic_ms = monotonic_ms
        self._retry_ms = 0
        self._failures: dict[Hashable, tuple[int, int]] = {}  # first failure (ms), count

    def enable_retries(self) -> None:
        """Raise TransientReadError from now on if a read fails, so that the caller retries.

        From now on, damage that may be repaired also raises RepairPending. Before this call, which
        ends the start, the reader retries a failed read at once, and skips damage.
        """
        self._retry_ms = _RETRY_MS

    def awaits_repair(self, physical_offset: int) -> bool:
        """Return whether a reader must not skip the damaged record at this physical offset."""
        return bool(self._retry_ms) and self._damage.may_be_repaired(physical_offset)

    def awaits_repair_before(self, physical_offset: int) -> bool:
        """Return whether a reader must not skip a lost record, whose unit has this offset.

        It is that of a later record. The place of the lost one is unknown.
        """
        return bool(self._retry_ms) and self._damage.may_be_repaired_before(physical_offset)

    def is_visible(self, physical_offset: int) -> bool:
        return self._log.min_offset <= physical_offset < self._dispatch.confirmed

    def read(self, physical_offset: int, size: int) -> bytes:
        """Return `size` bytes of the log, or b"" if they are invisible or count as damaged.

        Raises TransientReadError.
        """
        if not self.is_visible(physical_offset):
            return b""
        if not 0 < size <= max(MAX_RECORD, MAX_RUN_BYTES):
            return b""
        while True:
            try:
                data = self._log.read(physical_offset, size)
            except OSError as error:
                if self.is_damage((physical_offset, size), error):
                    return b""
            else:
                if self._failures:
                    self._failures.pop((physical_offset, size), None)
                return data

    def read_run(self, physical_offset: int, size: int) -> bytes:
        """Return the bytes of several records, or b"" if one read of all of them fails.

        Raises TransientReadError if the process lacks a resource, such as file descriptors.
        """
        try:
            return self._log.read(physical_offset, size)
        except OSError as error:
            if error.errno in SHORTAGES:
                raise TransientReadError(error) from error
            return b""

    def is_damage(self, what: Hashable, error: OSError) -> bool:
        """Return whether this failed read of `what` counts as damage.

        If it returns False, the caller retries at once. Raises TransientReadError if the caller
        must retry later.
        """
        if error.errno in SHORTAGES:
            raise TransientReadError(error) from error
        now = self._monotonic_ms()
        first_ms, count = self._failures.get(what, (now, 0))
        if len(self._failures) >= _REMEMBERED:
            self._failures.clear()
        self._failures[what] = first_ms, count + 1
        if count + 1 >= _MAX_FAILURES and now - first_ms >= self._retry_ms:
            return True
        if self._retry_ms:
            raise TransientReadError(error) from error
        return False

    def has_failed(self, physical_offset: int, size: int) -> bool:
        """Return whether the last read of these bytes failed."""
        return (physical_offset, size) in self._failures

    # ---- records ----

    def get(self, physical_offset: int, size: int | None = None) -> Record:
        """Return the record at this physical offset.

        `size` is the size in its consume queue unit, or None if the caller has no unit. Raises
        MessageNotFound, MessageCorrupted if the record is damaged, or TransientReadError.
        """
        if size == LOST_SIZE:  # the unit has the offset of the next record
            if self.awaits_repair_before(physical_offset):
                raise RepairPending(physical_offset)
            raise MessageNotFound(f"the record before physical offset {physical_offset} is lost")
        if not self.is_visible(physical_offset):
            raise MessageNotFound(
                f"there is no record at physical offset {physical_offset}: the log holds "
                f"{self._log.min_offset} to {self._dispatch.confirmed}"
            )
        front = self.read(physical_offset, _IDENTITY.size)
        fields = _IDENTITY.unpack(front) if len(front) == _IDENTITY.size else (0, 0, 0)
        total_size, magic, own_physical_offset = fields
        is_record = own_physical_offset == physical_offset and magic in _MAGICS
        if not is_record and size is None:
            if self.awaits_repair(physical_offset):
                raise RepairPending(physical_offset)
            raise MessageNotFound(f"no record starts at physical offset {physical_offset}")
        try:
            return record.decode(self.read(physical_offset, total_size if is_record else size or 0))
        except CorruptRecord as error:
            path = self._log.path_of(physical_offset)
            self._damage.report(path, physical_offset, error.reason)
            if self.awaits_repair(physical_offset):
                raise RepairPending(physical_offset) from None
            raise MessageCorrupted(path, physical_offset, error.reason) from None

    def store_timestamp(self, physical_offset: int) -> int | None:
        """Return the store timestamp of the record (ms), or None if it cannot be read.

        Raises TransientReadError.
        """
        header = self.read(physical_offset, record.HEADER.size)
        if len(header) < record.HEADER.size:
            return None
        if _IDENTITY.unpack_from(header)[2] != physical_offset:
            return None
        hosts = _SYS_FLAG.unpack_from(header)[0] & record.HOST_BITS
        return int(_STORE_TIMESTAMP[hosts].unpack_from(header)[0])
