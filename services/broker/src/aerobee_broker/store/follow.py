"""Following: keeps the log of a replica identical to its master's, and derives its messages.

    append (memory) → Flush.seal, write_and_sync (disk) → report → confirm → derive: visible

`append` takes the chunks of the master's `LogShipper.read`: whole records of one file, at their
physical offset. Nothing is derived from them before the master reports them as confirmed, so that a
cut of this log changes only the log. Large pieces are derived at once, because numpy takes 0.3 to 1
ms for any piece, however small. Measured, 1 KiB messages: 5.1 µs each in pieces of 256 KiB, 2.1 of
1 MiB, 1.7 of 2 MiB, and no less in larger ones.

A record of the halt queue requests an action at its place in the log. For example, a topic is
deleted there, and later messages belong to a new topic of that name. Deriving halts after such a
record until `resume`. If the broker starts before that, nothing after the record counts as
confirmed.

Deriving also stops before damage, until it is repaired from another replica. A replica that must
lead with damage derives what it has (`derive_over_damage`).

While a replica follows, its store refuses appends (`Flush.close_to_appends`). To become master:
`confirm` up to the end of the log; `derive_all`; for each halt, `resume` and `derive_all` again;
then `Flush.open_to_appends`.

Owned by the loop's thread. `begin_at` blocks, and runs while no other part uses the store.
"""

from __future__ import annotations

from collections.abc import Mapping

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

PIECE_BYTES = 2 << 20  # derived at once: a few ms of the loop
PIECE_MS = 25  # or everything that has waited this long
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
        self._due_ms = 0  # monotonic: when everything waiting is derived, however little
        self._reported = 0  # the confirm offset, up to the durable end of this log
        self._over_damage = False
        self.halted = False  # after a record of the halt queue

    def begin(self, lost_bytes: int) -> None:
        """Begin after recovery. `lost_bytes`: the damage that it found."""
        self._lost_bytes = lost_bytes
        self._reported = self._log.confirmed

    # ---- the log ----

    def append(self, physical_offset: int, data: Part, *, check_crc: bool = False) -> int:
        """Append whole records of one file. Return where the next ones begin.

        The caller has checked the CRC over all bytes; with `check_crc`, each record's own CRC is
        checked too. `Flush.seal` and `write_and_sync` follow.

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

    # ---- what is derived ----

    @property
    def underived(self) -> int:
        """Confirmed bytes of the log that are not derived, up to the first damage."""
        return max(0, self._limit - self._dispatch.confirmed)

    @property
    def _limit(self) -> int:
        damaged = self._damage.first_behind(self._dispatch.confirmed)
        if damaged is None or self._over_damage:
            return self._reported
        return min(self._reported, damaged.begin)

    def derive_over_damage(self) -> None:
        """Derive over damage from now on: this replica leads, and no other has what it lost."""
        self._over_damage = True

    def confirm(self, confirmed: int, monotonic_ms: int) -> None:
        """Note that the replicas in sync have everything below `confirmed`. `derive` follows.

        The offset counts up to the durable end of this log.
        """
        if not self.underived:
            self._due_ms = monotonic_ms + PIECE_MS
        self._reported = max(self._reported, min(confirmed, self._log.flushed))

    def resume(self) -> None:
        """Continue after a halt: the action of the halt queue's record is durably done."""
        self.halted = False
        self._flush.note_confirmed(self._dispatch.confirmed)

    def derive(self, monotonic_ms: int, *, at_once: bool = False) -> list[Arrival]:
        """Derive a piece of what is confirmed. Return the queues that received messages.

        Derives only if enough bytes wait, or they have waited long enough, or with `at_once`; not
        while halted. Raises StoreReadError; then repeat the call.
        """
        waiting = self.underived
        is_due = at_once or waiting >= PIECE_BYTES or monotonic_ms >= self._due_ms
        if self.halted or not waiting or not is_due:
            return []
        arrivals = self._derive(self._limit)
        self._due_ms = monotonic_ms + PIECE_MS
        return arrivals

    def derive_all(self, below: int | None = None) -> list[Arrival]:
        """Derive everything confirmed below this physical offset, up to the next halt.

        Blocks for about 1 ms a MiB. Raises StoreReadError.
        """
        limit = self._limit if below is None else min(below, self._limit)
        arrivals: list[Arrival] = []
        while self._dispatch.confirmed < limit and not self.halted:
            before = self._dispatch.confirmed
            arrivals += self._derive(limit)
            if self._dispatch.confirmed == before:
                break  # `below` is within a record, or damage was found
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

    # ---- the first of a copy ----

    def begin_at(
        self,
        physical_offset: int,
        fronts: Mapping[tuple[str, int], int],
        deleted_topics: Mapping[str, int] | None = None,
    ) -> None:
        """Begin a log without records where that of the master begins, durably.

        `fronts` and `deleted_topics`: those of the master's `MessageStore`. May be repeated until a
        record is appended.

        Blocks. Raises ChunkRefused if the log has records; OSError.
        """
        if self._log.end != self._log.min_offset:
            raise ChunkRefused(physical_offset, "the log is not empty")
        self._deleted_topics.take(deleted_topics or {})
        self._log.restart_at(physical_offset)
        self._log.confirmed = self._reported = physical_offset
        self._dispatch.load_fronts(fronts, physical_offset)
        self._derived_flush.finish()
