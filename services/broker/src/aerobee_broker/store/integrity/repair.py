"""Replaces damaged ranges of the log with the bytes of another replica.

    write (flusher thread): checked, written, synced → settle (event loop): no longer damaged

The caller must have verified that both logs are equal in these ranges. If a repair is interrupted,
the range stays damaged and is found again.

A slave stops adding records to its queues before damage, and continues after the repair. A replica
that had to lead with damage has queue entries (units) without a record. The repair replaces them
with real units. It adds the keys of these records at the end of the index, so the next start
rebuilds the index in the order of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aerobee_broker.disk import Disk, DiskFile
from aerobee_broker.errors import ChunkRefused
from aerobee_broker.store.damage import DamagedRange, DamageRegister
from aerobee_broker.store.derived.derived_flush import DerivedFlush
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.messages import LOST_SIZE, UNIT
from aerobee_broker.store.ship import Chunk
from aerobee_wire import record
from aerobee_wire.record import Record

if TYPE_CHECKING:
    from aerobee_broker.store.derived.consume_queue import ConsumeQueue

_WITHOUT_UNIT = (record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLBACK)


class LogRepair:
    """Repairs the log. `bytes` and `records` count the repaired data since the start."""

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        dispatch: Dispatch,
        derived_flush: DerivedFlush,
        damage: DamageRegister,
    ) -> None:
        self.bytes = 0
        self.records = 0
        self._disk = disk
        self._log = log
        self._dispatch = dispatch
        self._derived_flush = derived_flush
        self._damage = damage

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Write whole records over damaged ranges, durably. Call it on the flusher thread.

        Raises ChunkRefused, before any write, if a chunk is not whole or its range is not damaged.
        Raises OSError; the caller must then repeat the call.
        """
        for chunk in chunks:
            self._records_of(chunk)
            self._check_place(chunk)
        files: dict[int, DiskFile] = {}
        try:
            for chunk in chunks:
                start = self._log.start_at(chunk.physical_offset)
                if start not in files:
                    files[start] = self._disk.open(self._log.path_of(start))
                files[start].pwrite(chunk.data, chunk.physical_offset - start)
            for file in files.values():
                file.sync()
        finally:
            for file in files.values():
                file.close()

    def _records_of(self, chunk: Chunk) -> list[Record]:
        """Return the records of a chunk. Raises ChunkRefused."""
        from aerobee_broker.store.recovery.scan import Stop, scan  # numpy: only in case of damage

        begin, data = chunk.physical_offset, bytes(chunk.data)
        room = self._log.start_at(begin) + self._log.file_size - begin
        _, end = scan(data, begin, room, check_crc=True)
        behind = begin + (room if end.stop is Stop.BLANK else end.at)
        if not data or behind != chunk.end or (end.stop is Stop.MORE and end.at != len(data)):
            raise ChunkRefused(begin + end.at, end.reason or "the bytes are not a whole record")
        return list(record.iter_records(data[: end.at], check_crc=False))

    def _check_place(self, chunk: Chunk) -> None:
        """Check that the range of the chunk is damaged. Raises ChunkRefused."""
        for each in self._damage.ranges:
            if each.begin <= chunk.physical_offset and chunk.end <= each.end:
                return
        raise ChunkRefused(chunk.physical_offset, "the log is not damaged there")

    def settle(self, chunks: Sequence[Chunk]) -> None:
        """Clear the damage after `write`, and restore lost units. Call it on the event loop.

        A scrub may already have cleared the damage. Raises StoreReadError, OSError; the caller must
        then repeat the call.
        """
        for chunk in chunks:
            found = self._records_of(chunk)
            if chunk.physical_offset < self._dispatch.confirmed:
                self._derive(found)
            self._damage.clear(DamagedRange(chunk.physical_offset, chunk.end))
            self.records += len(found)
            self.bytes += chunk.end - chunk.physical_offset

    def _derive(self, found: Sequence[Record]) -> None:
        """Restore the units and keys of records that were damaged when the queues were derived."""
        queues, lost = self._dispatch.queues, []
        for each in found:
            queue = queues.get(each.topic, each.queue_id)
            if queue is None or each.sys_flag & record.TRANSACTION_MASK in _WITHOUT_UNIT:
                continue
            if not queue.kept_from <= each.queue_offset < queue.visible:
                continue
            if queues.unit(queue, each.queue_offset)[1] == LOST_SIZE:
                self._replace_unit(queue, each)
                lost.append(
                    (
                        queue.topic,
                        each.raw_properties,
                        each.physical_offset,
                        each.store_timestamp_ms,
                    )
                )
        if lost:
            self._derived_flush.request()
        if lost and self._dispatch.index is not None:
            from aerobee_broker.store.derived.keys import Keys

            self._dispatch.put_index()
            self._dispatch.recover_keys(Keys.of(lost))
            self._dispatch.index.rebuild_at_next_start()

    def _replace_unit(self, queue: ConsumeQueue, found: Record) -> None:
        code = self._dispatch.queues.tags_code(
            queue, found.raw_properties, found.store_timestamp_ms
        )
        unit = UNIT.pack(found.physical_offset, found.store_size, code)
        if found.queue_offset < queue.written:
            self._dispatch.queues.replace_unit(queue, found.queue_offset, unit)
        else:
            at = (found.queue_offset - queue.written) * UNIT.size
            queue.tail[at : at + UNIT.size] = unit
