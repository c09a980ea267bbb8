"""Repairs consume queue units whose check failed, or reports that the record is damaged.

If only the unit is damaged, its record is in the log, after the previous record of the same queue.
Units before it may be damaged too, so the search begins at the last good one of a few.
"""

from __future__ import annotations

from aerobee_broker.store.damage import DamageListener
from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.messages import LOST_SIZE, UNIT, Unit
from aerobee_broker.store.reading.log_reader import LogReader
from aerobee_broker.store.reading.record_check import check
from aerobee_wire import record
from aerobee_wire.record import Record

_SEARCHED_BYTES = 64 << 20  # of the log for each damaged unit: 0.1 s
_UNITS_BACK = 64  # units before the damaged one that are tried: more than a sector has
_WITHOUT_UNIT = (record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLBACK)


class UnitRepair:
    def __init__(
        self, log: CommitLog, dispatch: Dispatch, log_reader: LogReader, on_damage: DamageListener
    ) -> None:
        self._log = log
        self._dispatch = dispatch
        self._queues = dispatch.queues
        self._log_reader = log_reader
        self._damage = on_damage
        self._searched: set[tuple[str, int, int]] = set()  # units not found, and not searched again

    def repair(
        self, queue: ConsumeQueue, queue_offset: int, unit: Unit, problem: str
    ) -> tuple[int, bytes]:
        """Return (tags code, record) of a repaired unit; (0, b"") if the record is damaged or lost.

        Report a damaged or lost record with `problem` as the reason. Raises TransientReadError.
        """
        name = (queue.topic.name, queue.queue_id, queue_offset)
        found = None
        if unit[1] != LOST_SIZE and name not in self._searched:
            try:
                found = self._search(queue, queue_offset)
            except OSError as error:
                if not self._log_reader.has_failed(*unit[:2]):  # otherwise that read was retried
                    self._log_reader.is_damage(name, error)
        if found is None or (found.physical_offset, found.store_size) == unit[:2]:
            self._searched.add(name)
            self._report(name, unit, problem)
            return 0, b""
        code = self._queues.tags_code(queue, found.raw_properties, found.store_timestamp_ms)
        if queue_offset < queue.written:
            repaired = UNIT.pack(found.physical_offset, found.store_size, code)
            self._queues.replace_unit(queue, queue_offset, repaired)
        return code, self._log_reader.read(found.physical_offset, found.store_size)

    def _report(self, name: tuple[str, int, int], unit: Unit, problem: str) -> None:
        if self._log_reader.has_failed(*unit[:2]):
            problem = "the disk cannot read it"
        inside = self._log.min_offset <= unit[0] < self._log.end
        physical_offset = unit[0] if inside else 0
        topic, queue_id, queue_offset = name
        self._damage(
            self._log.path_of(physical_offset),
            physical_offset,
            f"{topic} {queue_id} {queue_offset}: {problem}",
        )

    def _search(self, queue: ConsumeQueue, queue_offset: int) -> Record | None:
        """Search the log for the record with this queue offset.

        Begin at the end of the last readable record of the queue before it. Raises OSError,
        TransientReadError.
        """
        from aerobee_broker.store.recovery.scan import find_record  # numpy: only in case of damage

        low = max(queue.kept_from, queue_offset - _UNITS_BACK)
        at = self._log.min_offset if low == queue.kept_from else None
        for offset in range(queue_offset - 1, low - 1, -1):
            before = self._queues.unit(queue, offset)
            data = self._log_reader.read(before[0], before[1])
            if not check(data, 0, before, queue, offset):
                at = before[0] + before[1]
                break
        if at is None:
            return None
        limit = min(at + _SEARCHED_BYTES, self._dispatch.confirmed)
        while (found_at := find_record(self._log, at, limit, check_crc=True)) is not None:
            found = self._log_reader.get(found_at)
            has_unit = found.sys_flag & record.TRANSACTION_MASK not in _WITHOUT_UNIT
            is_of_queue = (found.topic, found.queue_id) == (queue.topic.name, queue.queue_id)
            if has_unit and is_of_queue and found.queue_offset >= queue_offset:
                return found if found.queue_offset == queue_offset else None
            at = found_at + found.store_size
        return None
