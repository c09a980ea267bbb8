"""Reads records by queue offset, by physical offset, by time and by key.

Every record is checked before it is returned (`record_check.py`). The reader returns only visible
(durable) records. Methods that use a queue raise StoreReadError if a derived file cannot be read.
Methods that read the log raise TransientReadError if it cannot be read at the moment. They raise
RepairPending if a record is damaged and may be repaired from another replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from aerobee_broker.errors import (
    MessageCorrupted,
    MessageNotFound,
    RepairPending,
    StoreReadError,
)
from aerobee_broker.store.damage import DamageRegister
from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.derived.time_steps import Part
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.messages import LOST_SIZE, UNIT, ReadResult, ReadStatus, Unit
from aerobee_broker.store.options import MAX_RECORD
from aerobee_broker.store.reading.log_reader import MAX_RUN_BYTES, LogReader
from aerobee_broker.store.reading.record_check import Run, all_whole, check
from aerobee_broker.store.reading.unit_repair import UnitRepair
from aerobee_broker.store.retention.deleted_topics import DeletedTopics
from aerobee_broker.store.retention.topic_times import TopicTimes
from aerobee_wire import properties as props
from aerobee_wire.record import Record
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_broker.store.reading.run_columns import RunColumns

MAX_SCANNED_UNITS = 800  # in one filtered read; RocketMQ's max filter message size / 20
_END_OF_TIME = (1 << 63) - 1
_GAP = 4_096  # records at most this far apart are read with one call, which costs as much
_MANY = 192  # from this number of records on, arrays are faster: 0.4 µs a record instead of 1


class _Found:
    """The result of a read, while it is collected.

    `waits_at`: queue offset and physical offset of a damaged record that may be repaired. The read
    ends before it.
    """

    __slots__ = ("count", "missing", "parts", "waits_at")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.count = 0
        self.missing = 0
        self.waits_at: tuple[int, int] | None = None


class Reader:
    def __init__(
        self,
        log: CommitLog,
        dispatch: Dispatch,
        deleted_topics: DeletedTopics,
        damage: DamageRegister,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._dispatch = dispatch
        self._queues = dispatch.queues
        self._index = dispatch.index
        self._deleted_topics = deleted_topics
        self._log_reader = LogReader(log, dispatch, damage, monotonic_ms)
        self._unit_repair = UnitRepair(log, dispatch, self._log_reader, damage.report)
        self.enable_retries = self._log_reader.enable_retries
        self.topic_times = TopicTimes(log, dispatch, self.store_timestamp, self.search_offset)

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue after raising its minimum offset to the start of the log."""
        queue = self._queues.get(topic, queue_id)
        if queue is not None and queue.trimmed_to < self._log.min_offset:
            self._queues.trim_to(queue, self._log.min_offset)
        return queue

    def get(self, physical_offset: int, size: int | None = None) -> Record:
        """Return the record at this physical offset.

        `size` is the size in its consume queue unit, or None if the caller has no unit. Raises
        MessageNotFound, also if the record has expired by the retention time of its topic,
        MessageCorrupted if it is damaged, or TransientReadError.
        """
        found = self._log_reader.get(physical_offset, size)
        if self.topic_times.has_expired(found.topic, found.queue_id, found.queue_offset):
            raise MessageNotFound(
                f"the record at physical offset {physical_offset} has expired: it is older than "
                f"reserve.time of the topic {found.topic}"
            )
        return found

    # ---- by queue offset ----

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queue(topic, queue_id)
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last visible message."""
        queue = self._queues.get(topic, queue_id)
        return queue.visible if queue else 0

    def units(self, topic: str, queue_id: int, from_offset: int, count: int) -> list[Unit]:
        """Return (physical offset, size, tags code) of up to `count` visible messages.

        The first one has the queue offset `from_offset`. Return an empty list if that is too low.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or from_offset < queue.min_offset:
            return []
        return list(UNIT.iter_unpack(self._queues.units(queue, from_offset, count)))

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 262_144,
        tags: frozenset[int] | None = None,
    ) -> ReadResult:
        """Return records of a message queue from an offset on, as concatenated stored bytes.

        With `tags`, return only records with one of these tags codes, and examine at most 800
        messages. The first record is returned even if it is larger than `max_bytes`.
        Raises RepairPending if the first record is damaged and may be repaired.
        """
        queue = self._queue(topic, queue_id)
        low, high = (queue.min_offset, queue.visible) if queue else (0, 0)
        if queue_offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
        if queue_offset > high:
            return ReadResult(ReadStatus.OFFSET_TOO_LARGE, high, low, high)
        if queue is None or queue_offset == high:
            return ReadResult(ReadStatus.NO_NEW, queue_offset, low, high)
        runs: Sequence[Run | RunColumns] = ()
        if tags is None and max_messages >= _MANY:
            runs = self._choose_many(queue, queue_offset, max_messages, max_bytes)
            next_offset = queue_offset + sum(map(len, runs))
        if not runs:
            runs, next_offset = self._choose(queue, queue_offset, max_messages, max_bytes, tags)
        found = _Found()
        for run in runs:
            if isinstance(run, list):
                self._collect(queue, run, tags, found)
            else:
                self._collect_many(queue, run, found)
            if found.waits_at is not None:
                next_offset, physical_offset = found.waits_at
                if next_offset == queue_offset:
                    raise RepairPending(physical_offset)
                break
        status = ReadStatus.FOUND if found.count else ReadStatus.NO_MATCHED
        records = found.parts[0] if len(found.parts) == 1 else b"".join(found.parts)
        return ReadResult(status, next_offset, low, high, records, found.count, found.missing)

    def _choose_many(
        self, queue: ConsumeQueue, queue_offset: int, max_messages: int, max_bytes: int
    ) -> list[Run | RunColumns]:
        """Choose the records to read, like `_choose` without tags, but faster for many.

        Return an empty list if there are fewer than `_MANY` units, or if a unit cannot name a
        record.
        """
        units = self._queues.units(queue, queue_offset, max_messages)
        if len(units) < _MANY * UNIT.size:
            return []
        # numpy: 80 ms and 11 MB, not imported before the first such read.
        from aerobee_broker.store.reading.run_columns import RunColumns

        low, high = self._log.min_offset, self._dispatch.confirmed
        columns = RunColumns.of(queue_offset, units, low, high)
        if columns is None:
            return []
        runs = columns.first(max_bytes).runs(_GAP, self._limit_of_run)
        return [run if len(run) >= _MANY else run.one_by_one() for run in runs]

    def _limit_of_run(self, physical_offset: int) -> int:
        """Return the highest physical offset at which one read from this offset on may end."""
        file_end = self._log.start_at(physical_offset) + self._log.file_size
        return min(physical_offset + MAX_RUN_BYTES, file_end)

    def _choose(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tags: frozenset[int] | None,
    ) -> tuple[list[Run], int]:
        """Choose the records to read. Return them in runs, and the queue offset of the next read.

        The records of a run are close enough to be read with one call. A unit that cannot name a
        record forms a run of its own whatever the tags are, because it may be repaired.
        """
        count = max_messages if tags is None else MAX_SCANNED_UNITS
        runs: list[Run] = []
        run: Run = []
        chosen, budget = 0, max_bytes
        low, high = self._log.min_offset, self._dispatch.confirmed
        # A record of the same run must begin at or before `near`, and end at or before `limit`.
        near = limit = -1
        for unit in UNIT.iter_unpack(self._queues.units(queue, queue_offset, count)):
            physical_offset, size, code = unit
            sensible = low <= physical_offset < high and 0 < size <= MAX_RECORD
            if sensible:
                low = end = physical_offset + size  # physical offsets rise along a queue
            if tags is None or code in tags or not sensible:
                if chosen and (chosen >= max_messages or (sensible and size > budget)):
                    break
                chosen += 1
                if not sensible:
                    runs.append([(queue_offset, unit)])
                    near = -1
                else:
                    budget -= size
                    if physical_offset > near or end > limit:
                        run = []
                        runs.append(run)
                        limit = self._limit_of_run(physical_offset)
                    run.append((queue_offset, unit))
                    near = end + _GAP
            queue_offset += 1
        return runs, queue_offset

    def _collect_many(self, queue: ConsumeQueue, run: RunColumns, found: _Found) -> None:
        """Add the records of a long run to `found`."""
        data = self._log_reader.read_run(*run.span)
        if run.all_whole(data, queue):
            found.parts.append(run.records(data))
            found.count += len(run)
        else:
            self._collect(queue, run.one_by_one(), None, found)

    def _collect(
        self, queue: ConsumeQueue, run: Run, tags: frozenset[int] | None, found: _Found
    ) -> None:
        """Add the records of a run, which one call reads, to `found`."""
        at, last = run[0][1][0], run[-1][1]
        span = last[0] + last[1] - at
        read = self._log_reader.read if len(run) == 1 else self._log_reader.read_run
        data = read(at, span)
        if not data and len(run) > 1:  # one bad sector must not make the other records unreadable
            for entry in run:
                self._collect(queue, [entry], tags, found)
                if found.waits_at is not None:
                    return
            return
        size = sum([unit[1] for _, unit in run])
        whole = size == len(data) and all_whole(data, at, run, queue)
        if not whole:
            problems = [check(data, unit[0] - at, unit, queue, offset) for offset, unit in run]
            whole = size == len(data) and not any(problems)
        if whole:
            found.parts.append(data)
            found.count += len(run)
            return
        for (offset, unit), problem in zip(run, problems, strict=True):
            if problem:
                code, record = self._unit_repair.repair(queue, offset, unit, problem)
            else:
                code, record = unit[2], data[unit[0] - at : unit[0] - at + unit[1]]
            if not record:
                reader, is_lost = self._log_reader, unit[1] == LOST_SIZE
                waits = reader.awaits_repair_before if is_lost else reader.awaits_repair
                if waits(unit[0]):
                    found.waits_at = offset, unit[0]
                    return
                found.missing += 1
            elif tags is None or code in tags:
                found.count += 1
                found.parts.append(record)

    # ---- by time ----

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store timestamp of a message in ms, or 0 if the message does not exist.

        If its record cannot be read, return the timestamp of the next readable message.
        """
        queue = self._queue(topic, queue_id)
        return self._store_timestamp(queue, queue_offset) if queue else 0

    def log_timestamp(self, physical_offset: int) -> int | None:
        """Return the store timestamp (ms) of the record at a physical offset of the log.

        Returns None if there is no readable record. Raises TransientReadError.
        """
        return self._log_reader.store_timestamp(physical_offset)

    def _store_timestamp(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Return the store timestamp of this or the next readable message, or 0 without one."""
        while queue.min_offset <= queue_offset < queue.visible:
            physical_offset, size, _ = self._queues.unit(queue, queue_offset)
            if size != LOST_SIZE:
                stored_ms = self._log_reader.store_timestamp(physical_offset)
                if stored_ms is not None:
                    return stored_ms
            queue_offset += 1
        return 0

    def search_offset(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """Return the queue offset of the first message stored at or after the time.

        If all messages are older, return the offset of the next message. With `upper`, return the
        offset of the last message stored at or before the time.

        The clock may have been set back, so store times ascend only between the steps of the log.
        In a part of the log without order, the result is its first message, or the last one with
        `upper`.
        """
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0
        if upper:
            return self._last_until(queue, timestamp_ms)
        for part, begin, end in self._parts(queue):
            if not part.is_ordered:
                if (part.highest_ms or 0) >= timestamp_ms:
                    return begin
                continue
            found = self._first_at(queue, begin, end, timestamp_ms)
            if found < end:
                return found
        return queue.visible

    def _last_until(self, queue: ConsumeQueue, timestamp_ms: int) -> int:
        """Return the offset of the last message stored at or before the time."""
        for part, begin, end in reversed(list(self._parts(queue))):
            if not part.is_ordered:
                return end - 1
            found = self._first_at(queue, begin, end, timestamp_ms + 1)
            if found > begin:
                return found - 1
        return queue.min_offset

    def _parts(self, queue: ConsumeQueue) -> Iterator[tuple[Part, int, int]]:
        """Yield the parts of the log that have messages of a queue, and their queue offsets."""
        begin = queue.min_offset
        for part in self._dispatch.time_steps.parts():
            end = queue.visible
            if part.end is not None:
                end = self._queues.first_at_or_after(queue, part.end)
            if begin < end:
                yield part, begin, end
                begin = end

    def _first_at(self, queue: ConsumeQueue, low: int, high: int, timestamp_ms: int) -> int:
        """Return the first offset in a range whose message was stored at or after the time.

        Store times must ascend in the range. If all messages are older, return `high`.
        """
        while low < high:
            middle = (low + high) // 2
            if 0 < self._store_timestamp(queue, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    # ---- by key ----

    def query(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = _END_OF_TIME,
        unique: bool = False,
        damaged: list[MessageCorrupted] | None = None,
    ) -> list[Record]:
        """Return messages whose KEYS contain `key`, or whose unique id is `key`, newest first.

        With `unique`, compare only the unique id. The list `damaged` receives an error for each
        indexed record that could not be read, because it may be one of these messages.
        """
        result: list[Record] = []
        for physical_offset in self.indexed(topic, key, begin_ms, end_ms):
            found = self.indexed_record(physical_offset, damaged)
            if found is None:
                continue
            if not begin_ms <= found.store_timestamp_ms <= end_ms or found.topic != topic:
                continue
            keys = found.properties.get(props.KEYS, "").split(props.KEY_SEPARATOR)
            if found.unique_message_id == key or (not unique and key in keys):
                result.append(found)
                if len(result) >= max_messages:
                    break
        return result

    @property
    def is_indexed(self) -> bool:
        """Return whether there is an index of keys."""
        return self._index is not None

    def indexed(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of records that may have a key, newest first, each once.

        The caller must compare topic, key and store time. Without an index, yields nothing.
        """
        if self._index is None:
            return
        try:
            self._dispatch.put_index()
        except OSError as error:
            raise StoreReadError(error) from error
        since = self._deleted_topics.deleted_below(topic)
        if not self._dispatch.time_steps.is_ordered:  # the index expects ascending times
            begin_ms, end_ms = 0, _END_OF_TIME
        seen: set[int] = set()  # a key may occur twice in KEYS
        for physical_offset in self._index.find(topic, key, begin_ms, end_ms):
            if physical_offset not in seen and physical_offset >= since:
                seen.add(physical_offset)
                yield physical_offset

    def indexed_record(
        self, physical_offset: int, damaged: list[MessageCorrupted] | None = None
    ) -> Record | None:
        """Return a record that the index names, or None if it cannot be read or has expired.

        If the record is visible and damaged, the list `damaged` receives the error.
        """
        try:
            found = self._log_reader.get(physical_offset)
        except (MessageNotFound, MessageCorrupted) as error:
            if damaged is not None and self._log_reader.is_visible(physical_offset):
                damaged.append(self._indexed_damage(physical_offset, error))
            return None
        has_expired = self.topic_times.has_expired(found.topic, found.queue_id, found.queue_offset)
        return None if has_expired else found

    def _indexed_damage(self, physical_offset: int, error: MqError) -> MessageCorrupted:
        if isinstance(error, MessageCorrupted):
            return error
        reason = "the index names it, and no record starts there"
        return MessageCorrupted(self._log.path_of(physical_offset), physical_offset, reason)
