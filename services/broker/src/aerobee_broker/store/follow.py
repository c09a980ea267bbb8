"""Keeps the log of a replica identical to the log of its master.

To *derive* records means to add them to consume queues and index, which makes them visible.

    append (memory) → Flush.seal, write_and_sync (disk) → report → confirm → derive: visible

`append` receives the chunks that `LogShipper.read` returns on the master. The follower derives
records only after the master reports them as confirmed, so that a cut of this log changes only the
log. It derives large pieces, because numpy takes 0.3 to 1 ms even for a small piece. A message of
1 KiB takes 5.1 µs in pieces of 256 KiB, 2.1 µs in pieces of 1 MiB, and 1.7 µs in larger pieces.

A record of the halt queue requests an action at its position in the log. For example, a topic is
deleted at this position, and later messages belong to a new topic of that name. Deriving halts
after such a record until `resume`. If the broker restarts before that, no later record counts as
confirmed.

Deriving also stops before damage, until the damage is repaired from another replica. A replica that
must lead in spite of damage skips the damage (`derive_over_damage`).

While a replica follows, its store refuses appends (`Flush.close_to_appends`). To become master,
call `confirm` with the end of the log, and `derive` until `underived` is 0. For each halt, call
`resume` and continue. Then call `Flush.open_to_appends`.

The event loop's thread owns the object. `begin_at` blocks, and no other part may use the store
meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from aerobee_broker.errors import ChunkRefused, DiskFull, StoreReadError, StoreReadOnly
from aerobee_broker.store.damage import DamageRegister, EventListener
from aerobee_broker.store.derived.derived_flush import DerivedFlush
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.flush import Flush
from aerobee_broker.store.log.commit_log import BLANK_RESERVE, CommitLog
from aerobee_broker.store.log.recent_writes import Part
from aerobee_broker.store.log.whole_records import whole_records
from aerobee_broker.store.messages import Arrival
from aerobee_broker.store.options import MAX_RECORD
from aerobee_broker.store.retention.deleted_topics import DeletedTopics
from aerobee_broker.store.retention.retention import Retention
from aerobee_wire import topics as names

PIECE_BYTES = 2 << 20  # derived with one call: a few ms of the event loop
PIECE_MS = 25  # after this time, a smaller piece is derived
HALT_QUEUE = (names.METADATA_LOG_TOPIC, names.METADATA_DELETION_QUEUE)  # topic, queue id


class LogFollower:
    def __init__(
        self,
        log: CommitLog,
        dispatch: Dispatch,
        flush: Flush,
        parts: tuple[DerivedFlush, Retention, DeletedTopics],
        *,
        damage: DamageRegister,
        on_event: EventListener,
    ) -> None:
        self._log = log
        self._dispatch = dispatch
        self._flush = flush
        self._derived_flush, self._retention, self._deleted_topics = parts
        self._damage = damage
        self._event = on_event
        self._lost_bytes = 0
        self._due_ms = 0  # monotonic time at which a piece of any size is derived
        self._reported = 0  # the lower of the confirm offset and the durable end of this log
        self._over_damage = False
        self.halted = False  # whether deriving halted after a record of the halt queue

    def begin(self, lost_bytes: int) -> None:
        """Begin after recovery, which found this number of damaged bytes."""
        self._lost_bytes = lost_bytes
        self._reported = self._log.confirmed

    # ---- the log ----

    def append(self, physical_offset: int, data: Part, *, check_crc: bool = False) -> int:
        """Append whole records of one file, and return the physical offset of the next record.

        The caller has checked the CRC over all bytes. With `check_crc`, also check the CRC of each
        record. The caller must then call `Flush.seal` and `Flush.write_and_sync`.

        Raises ChunkRefused if the records do not continue this log, StoreReadOnly, DiskFull.
        """
        if self._flush.read_only_reason:
            raise StoreReadOnly(self._flush.read_only_reason)
        if not self._flush.role_reason:
            raise ChunkRefused(physical_offset, "this replica takes appends of its own")
        if physical_offset != self._log.end:
            raise ChunkRefused(physical_offset, f"the log ends at {self._log.end}")
        if self._retention.stop:
            raise DiskFull(self._retention.stop)
        start = self._log.start_at(physical_offset)
        whole = whole_records(data, physical_offset, start + self._log.file_size - physical_offset)
        if not 0 < whole.length == len(data):
            raise ChunkRefused(whole.end, "the bytes are not a whole record")
        if check_crc:
            self._check_crcs(physical_offset, data)
        self._log.extend_raw(data, whole.end)
        return whole.end

    def _check_crcs(self, physical_offset: int, data: Part) -> None:
        """Check the CRC of each record. Raises ChunkRefused."""
        from aerobee_broker.store.recovery.scan import Stop, scan

        room = self._log.start_at(physical_offset) + self._log.file_size - physical_offset
        _, end = scan(bytes(data), physical_offset, room, check_crc=True)
        if end.stop is not Stop.BLANK and end.at != len(data):
            raise ChunkRefused(physical_offset + end.at, f"the master has damage: {end.reason}")

    # ---- derive confirmed records ----

    @property
    def underived(self) -> int:
        """The number of confirmed bytes before the first damage that queues and index lack."""
        return max(0, self._limit - self._dispatch.confirmed)

    @property
    def _limit(self) -> int:
        damaged = self._damage.first_behind(self._dispatch.confirmed)
        if damaged is None or self._over_damage:
            return self._reported
        return min(self._reported, damaged.begin)

    def derive_over_damage(self) -> None:
        """Let `derive` skip damage from now on, because no other replica can repair this one."""
        self._over_damage = True

    def confirm(self, confirmed: int, monotonic_ms: int) -> None:
        """Note that the replicas in sync have all records below the physical offset `confirmed`.

        The part after the durable end of this log is ignored. Call `derive` afterwards.
        """
        if not self.underived:
            self._due_ms = monotonic_ms + PIECE_MS
        self._reported = max(self._reported, min(confirmed, self._log.flushed))

    def resume(self) -> None:
        """Continue after a halt. The action that the record requested must be durable."""
        self.halted = False
        self._flush.note_confirmed(self._dispatch.confirmed)

    def derive(self, monotonic_ms: int, *, at_once: bool = False) -> list[Arrival]:
        """Add a piece of the confirmed records to queues and index.

        Return an arrival for each queue that received messages.

        Do nothing while halted. Do nothing if few bytes wait and have not waited for `PIECE_MS`,
        unless `at_once` is True. Raises StoreReadError; the caller must then repeat the call.
        """
        waiting = self.underived
        is_due = at_once or waiting >= PIECE_BYTES or monotonic_ms >= self._due_ms
        if self.halted or not waiting or not is_due:
            return []
        arrivals = self._derive(self._limit)
        self._due_ms = monotonic_ms + PIECE_MS
        return arrivals

    def _derive(self, confirmed: int) -> list[Arrival]:
        begin = self._dispatch.confirmed
        for size in (PIECE_BYTES, MAX_RECORD + BLANK_RESERVE):  # the second for one large record
            limit = min(confirmed, begin + size)
            try:
                arrivals = self._walk(begin, limit)
            except OSError as error:
                raise StoreReadError(error) from error
            if self._dispatch.confirmed > begin or limit == confirmed:
                break
        if not self.halted:
            self._flush.note_confirmed(self._dispatch.confirmed)
        return arrivals

    def _walk(self, begin: int, limit: int) -> list[Arrival]:
        from aerobee_broker.store.recovery.derive import Deriver  # numpy: only in a follower
        from aerobee_broker.store.recovery.walk import Walk

        arrivals: list[Arrival] = []
        deriver = Deriver(
            log=self._log,
            dispatch=self._dispatch,
            on_damage=self._damage.report,
            on_deletion=partial(self._deleted_topics.found, self._event, self._log.min_offset),
            deleted_topics=self._deleted_topics.offsets,
            queues_from=begin,
            index_from=begin,
            lost_bytes=self._lost_bytes,
            arrivals=arrivals,
            halt_queue=HALT_QUEUE,
        )
        walk = Walk(
            log=self._log,
            deriver=deriver,
            damage=self._damage,
            on_event=self._event,
            durable=self._log.flushed,
            over_damage=self._over_damage,
        )
        walked = walk.run(begin, limit, derive=True, on_progress=lambda at: None)
        self._lost_bytes = deriver.lost_bytes
        self._dispatch.recover(0, walked.at, 0)  # it may be after a blank record, or damage
        self.halted = deriver.halted_at is not None
        return arrivals

    # ---- start of a copy ----

    def begin_at(
        self,
        physical_offset: int,
        fronts: Mapping[tuple[str, int], int],
        deleted_topics: Mapping[str, int] | None = None,
    ) -> None:
        """Start the log of an empty store at the physical offset where the master's log begins.

        `fronts` and `deleted_topics` come from the `MessageStore` of the master. The change is
        durable. The call may be repeated until a record is appended.

        The call blocks. Raises ChunkRefused if the log has records, or OSError.
        """
        if self._log.end != self._log.min_offset:
            raise ChunkRefused(physical_offset, "the log is not empty")
        self._deleted_topics.take(deleted_topics or {})
        self._log.restart_at(physical_offset)
        self._log.confirmed = self._reported = physical_offset
        self._dispatch.load_fronts(fronts, physical_offset)
        self._derived_flush.finish()
