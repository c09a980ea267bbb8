"""Reading: records by queue offset, by physical offset, by time and by key.

Every record is checked before it leaves: its own place, queue, queue offset and topic against what
was asked for, and the CRC of its body. What fails is reported and left out, never served. Only what
is visible (durable) is read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from isal.isal_zlib import crc32

from aerobee_broker.errors import (
    SHORTAGES,
    MessageCorrupted,
    MessageNotFound,
    StoreReadError,
    StoreShort,
)
from aerobee_broker.store.derived.consume_queue import ConsumeQueue, ConsumeQueues
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.derived.index import Index
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.messages import LOST_SIZE, UNIT, ReadResult, ReadStatus, Unit
from aerobee_wire import properties as props
from aerobee_wire import record
from aerobee_wire.record import CorruptRecord, Record
from aerobee_wire.status import MqError

Damage = Callable[[Path, int, str], None]
Run = list[tuple[int, Unit]]  # queue offset and unit of records that are read in one go

MAX_SCANNED_UNITS = 800  # of one filtered read; RocketMQ's max filter message size / 20
_GAP = 4_096  # records this close to one another are read in one go: a call costs as much
_RUN = 1 << 20  # but no more than this at a time
_MEND_BYTES = 64 << 20  # of log are searched for the record of a damaged unit, 0.1 s

# What is compared with a unit; these fields stand before the hosts.
_FRONT = record.HEADER_LAYOUT.view(
    "total_size",
    "magic_code",
    "body_crc",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
)
# The same without the body CRC, and with the body length: of a record with two IPv4 hosts.
_FRONT_V4 = record.HEADER_LAYOUT.view(
    "total_size",
    "magic_code",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "body_length",
)
# By the host bits of the sys flag.
_BODY_AT = {bits: layout.size for bits, layout in record.HEADER_LAYOUTS.items()}
_BODY_LENGTH = {bits: layout.view("body_length") for bits, layout in record.HEADER_LAYOUTS.items()}
_STORE_TIMESTAMP = {
    bits: layout.view("store_timestamp_ms") for bits, layout in record.HEADER_LAYOUTS.items()
}
_WITHOUT_UNIT = (record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLBACK)
_BAD_BODY = "the body does not match its CRC"
_HOST_BITS = record.HOST_BITS
# A disk that fails now and then damages no record: at one place it must fail so often, and so long.
_FAILURES = 3
_PATIENCE_MS = 60_000
_REMEMBERED = 10_000  # places


def check(  # noqa: PLR0911  # one return for each thing that can be wrong
    data: bytes, at: int, unit: Unit, queue: ConsumeQueue, queue_offset: int
) -> str:
    """What is wrong with the record that stands at `data[at:]`; empty when nothing is."""
    place, size, _ = unit
    if at + size > len(data) or size < record.FIXED_V1:
        return "the log ends inside it"
    total, magic, crc, queue_id, own_offset, own_place, sys_flag = _FRONT.unpack_from(data, at)
    if own_place != place or total != size or magic != queue.topic.magic:
        return "there is no such record at its place"
    if own_offset != queue_offset or queue_id != queue.queue_id:
        return "it belongs to another queue or queue offset"
    hosts = sys_flag & _HOST_BITS
    body_at = at + _BODY_AT[hosts]
    topic_at = body_at + _BODY_LENGTH[hosts].unpack_from(data, at)[0]
    topic_end = topic_at + len(queue.topic.field)
    if not body_at < topic_at <= at + size or data[topic_at:topic_end] != queue.topic.field:
        return "its topic is another, or its lengths do not add up"
    if topic_end + 2 + int.from_bytes(data[topic_end : topic_end + 2], "big") != at + size:
        return "its lengths do not add up to its size"
    if at + size > topic_end + 2 and data[at + size - 1] != props.VALUE_END_CODE:
        return "its properties are cut off"
    tail_at = at + size - record.CRC_TAIL_BYTES
    tail = data[tail_at : at + size]
    try:
        if record.has_crc_tail(tail):
            matches = record.crc_tail(crc32(data[at:tail_at])) == tail
            return "" if matches else "it does not match its CRC"
    except CorruptRecord as error:
        return error.reason
    return "" if crc32(data[body_at:topic_at]) & record.CRC_MASK == crc else _BAD_BODY


def all_whole(data: bytes, place: int, run: Run, queue: ConsumeQueue) -> bool:
    """Whether each record of a run, which stands at `place`, is whole, as `check` would say it.

    Quicker: what matches the CRC at its end is what was written, so only its name is compared. A
    record without that CRC, or with a host of IPv6, is not looked at: False.
    """
    front, tail_of, data_end = _FRONT_V4.unpack_from, record.crc_tail, len(data)
    magic, queue_id, field = queue.topic.magic, queue.queue_id, queue.topic.field
    for offset, (own_place, size, _) in run:
        at = own_place - place
        end = at + size
        if end > data_end or size < record.FIXED_V1:
            return False
        total, own_magic, own_queue, own_offset, itself_at, sys_flag, body = front(data, at)
        if itself_at != own_place or total != size or own_magic != magic:
            return False
        if own_offset != offset or own_queue != queue_id or sys_flag & _HOST_BITS:
            return False
        tail_at = end - record.CRC_TAIL_BYTES
        if data[tail_at:end] != tail_of(crc32(data[at:tail_at])):
            return False
        if not data.startswith(field, at + record.HEADER.size + body):
            return False
    return True


class Reader:
    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        dispatch: Dispatch,
        *,
        max_record: int,
        monotonic_ms: Callable[[], int],
        on_damage: Damage,
    ) -> None:
        self._patience_ms = 0
        self._failures: dict[object, tuple[int, int]] = {}  # where → first one (ms), how many
        self._monotonic_ms = monotonic_ms
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatch = dispatch
        self._max_record = max_record
        self._damage = on_damage
        self._hopeless: set[tuple[str, int, int]] = set()  # units whose record was looked for

    def be_patient(self) -> None:
        """Whoever reads from now on can come again. At a start nobody can: there it is tried again
        at once."""
        self._patience_ms = _PATIENCE_MS

    # ---- by queue offset ----

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int,
        max_bytes: int,
        tags: frozenset[int] | None,
    ) -> ReadResult:
        queue = self._queues.get(topic, queue_id)
        low, high = (queue.min_offset, queue.visible) if queue else (0, 0)
        if queue_offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
        if queue_offset > high:
            return ReadResult(ReadStatus.OFFSET_TOO_LARGE, high, low, high)
        if queue is None or queue_offset == high:
            return ReadResult(ReadStatus.NO_NEW, queue_offset, low, high)
        runs, following = self._choose(queue, queue_offset, max_messages, max_bytes, tags)
        parts: list[bytes] = []
        count = bad = 0
        for run in runs:
            good, missing = self._collect(queue, run, tags, parts)
            count, bad = count + good, bad + missing
        status = ReadStatus.FOUND if count else ReadStatus.NO_MATCHED
        records = parts[0] if len(parts) == 1 else b"".join(parts)
        return ReadResult(status, following, low, high, records, count, bad)

    def _choose(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tags: frozenset[int] | None,
    ) -> tuple[list[Run], int]:
        """The records to read, those together that lie close enough to be read in one go, and the
        offset to go on at. A unit that makes no sense is chosen whatever the tags, and alone: it
        may be mended.
        """
        count = max_messages if tags is None else MAX_SCANNED_UNITS
        runs: list[Run] = []
        run: Run = []
        chosen, budget = 0, max_bytes
        low, high, max_record = self._log.min_offset, self._dispatch.confirmed, self._max_record
        near = limit = -1  # up to where a record of the same run may begin, and must end
        for unit in UNIT.iter_unpack(self._queues.units(queue, offset, count)):
            place, size, code = unit
            sensible = low <= place < high and 0 < size <= max_record
            if sensible:
                low = end = place + size  # places rise along a queue
            if tags is None or code in tags or not sensible:
                if chosen and (chosen >= max_messages or (sensible and size > budget)):
                    break
                chosen += 1
                if not sensible:
                    runs.append([(offset, unit)])
                    near = -1
                else:
                    budget -= size
                    if place > near or end > limit:
                        run = []
                        runs.append(run)
                        file_end = self._log.start_at(place) + self._log.file_size
                        limit = min(place + _RUN, file_end)
                    run.append((offset, unit))
                    near = end + _GAP
            offset += 1
        return runs, offset

    def _collect(
        self,
        queue: ConsumeQueue,
        run: Run,
        tags: frozenset[int] | None,
        parts: list[bytes],
    ) -> tuple[int, int]:
        """Appends the records of a run; returns how many there are and how many are missing."""
        place, last = run[0][1][0], run[-1][1]
        whole = last[0] + last[1] - place
        data = self._read(place, whole) if len(run) == 1 else self._read_run(place, whole)
        if not data and len(run) > 1:  # one sector must not take the others along
            each = [self._collect(queue, [one], tags, parts) for one in run]
            return sum(good for good, _ in each), sum(missing for _, missing in each)
        size = sum(unit[1] for _, unit in run)
        if size == len(data) and all_whole(data, place, run, queue):
            parts.append(data)
            return len(run), 0
        problems = [check(data, unit[0] - place, unit, queue, offset) for offset, unit in run]
        if size == len(data) and not any(problems):
            parts.append(data)
            return len(run), 0
        good = missing = 0
        for (offset, unit), problem in zip(run, problems, strict=True):
            if problem:
                code, one = self._mend(queue, offset, unit, problem)
            else:
                at = unit[0] - place
                code, one = unit[2], data[at : at + unit[1]]
            if not one:
                missing += 1
            elif tags is None or code in tags:
                good += 1
                parts.append(one)
        return good, missing

    def _read(self, place: int, size: int) -> bytes:
        """Empty when there is no such place, or the disk cannot read it, however often it is asked:
        the check tells then. Raises StoreShort."""
        if not self._log.min_offset <= place < self._dispatch.confirmed:
            return b""
        if not 0 < size <= max(self._max_record, _RUN):
            return b""
        while True:
            try:
                data = self._log.read(place, size)
            except OSError as error:
                if self._is_lasting((place, size), error):
                    return b""
            else:
                if self._failures:
                    self._failures.pop((place, size), None)
                return data

    def _read_run(self, place: int, size: int) -> bytes:
        """Empty when the disk cannot read all of it at once. Raises StoreShort."""
        try:
            return self._log.read(place, size)
        except OSError as error:
            if error.errno in SHORTAGES:
                raise StoreShort(error) from error
            return b""

    def _is_lasting(self, where: object, error: OSError) -> bool:
        """Whether a failure to read is to be taken for damage; if not, it is to be tried again: at
        once at a start, else later. Raises StoreShort."""
        if error.errno in SHORTAGES:
            raise StoreShort(error) from error
        now = self._monotonic_ms()
        since, times = self._failures.get(where, (now, 0))
        if len(self._failures) >= _REMEMBERED:
            self._failures.clear()
        self._failures[where] = since, times + 1
        if times + 1 >= _FAILURES and now - since >= self._patience_ms:
            return True
        if self._patience_ms:
            raise StoreShort(error) from error
        return False

    def units(self, queue: ConsumeQueue, offset: int, count: int) -> list[Unit]:
        return list(UNIT.iter_unpack(self._queues.units(queue, offset, count)))

    # ---- mending ----

    def _mend(
        self, queue: ConsumeQueue, offset: int, unit: Unit, problem: str
    ) -> tuple[int, bytes]:
        """A record failed its check. When it is the unit that is wrong, the record stands behind
        the one before it: then the unit is mended, and its tags code and the record are returned.
        Else the damage is reported.
        """
        name = (queue.topic.name, queue.queue_id, offset)
        found = None
        if unit[1] != LOST_SIZE and name not in self._hopeless:
            try:
                found = self._look_for(queue, offset)
            except OSError as error:
                if unit[:2] not in self._failures:  # else it was waited for
                    self._is_lasting(name, error)
        if found is None or (found.physical_offset, found.store_size) == unit[:2]:
            self._hopeless.add(name)
            if unit[:2] in self._failures:
                problem = "the disk cannot read it"
            place = unit[0] if self._log.min_offset <= unit[0] < self._log.end else 0
            self._damage(
                self._log.path_of(place), place, f"{name[0]} {name[1]} {offset}: {problem}"
            )
            return 0, b""
        code = self._queues.code_of(queue, found.raw_properties, found.store_timestamp_ms)
        if offset < queue.written:
            mended = UNIT.pack(found.physical_offset, found.store_size, code)
            self._queues.replace_unit(queue, offset, mended)
        return code, self._read(found.physical_offset, found.store_size)

    def _look_for(self, queue: ConsumeQueue, offset: int) -> Record | None:
        """The record with this queue offset, searched from the record before it on."""
        from aerobee_broker.store.recovery.scan import (
            find_record,  # numpy: only when something is wrong
        )

        place = self._log.min_offset
        if offset > queue.min_offset:
            before = self._queues.unit(queue, offset - 1)
            if check(self._read(before[0], before[1]), 0, before, queue, offset - 1):
                return None
            place = before[0] + before[1]
        limit = min(place + _MEND_BYTES, self._dispatch.confirmed)
        while (at := find_record(self._log, place, limit, check_crc=True)) is not None:
            one = self.get(at)
            has_unit = one.sys_flag & record.TRANSACTION_MASK not in _WITHOUT_UNIT
            if has_unit and (one.topic, one.queue_id) == (queue.topic.name, queue.queue_id):
                return one if one.queue_offset == offset else None
            place = at + one.store_size
        return None

    # ---- by physical offset ----

    def get(self, physical_offset: int, size: int | None = None) -> Record:
        """Raises MessageNotFound; MessageCorrupted when there is a record and it is damaged;
        StoreShort."""
        place = physical_offset
        if size == LOST_SIZE:  # at the place is the next one
            raise MessageNotFound(f"the record before physical offset {place} is lost")
        if not self._log.min_offset <= place < self._dispatch.confirmed:
            raise MessageNotFound(
                f"there is no record at physical offset {place}: the log holds "
                f"{self._log.min_offset} to {self._dispatch.confirmed}"
            )
        front = self._read(place, _FRONT.size)
        fields = _FRONT.unpack(front) if len(front) == _FRONT.size else (0,) * 7
        is_record = fields[5] == place and fields[1] in (record.MAGIC_V1, record.MAGIC_V2)
        if not is_record and size is None:
            raise MessageNotFound(f"no record starts at physical offset {place}")
        try:
            return record.decode(self._read(place, fields[0] if is_record else size or 0))
        except CorruptRecord as error:
            path = self._log.path_of(place)
            self._damage(path, place, error.reason)
            raise MessageCorrupted(path, place, error.reason) from None

    # ---- by time ----

    def store_timestamp(self, queue: ConsumeQueue, offset: int) -> int:
        """Of the message at `offset`, or of the next one that can be read; 0 when there is none."""
        while queue.min_offset <= offset < queue.visible:
            place, size, _ = self._queues.unit(queue, offset)
            front = self._read(place, record.HEADER.size) if size != LOST_SIZE else b""
            if len(front) == record.HEADER.size and _FRONT.unpack_from(front)[5] == place:
                hosts = _FRONT.unpack_from(front)[6] & _HOST_BITS
                return int(_STORE_TIMESTAMP[hosts].unpack_from(front)[0])
            offset += 1
        return 0

    def search_offset(self, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool) -> int:
        """First offset stored at or after the time (the next offset when all are older); with
        `upper` the last one stored at or before it.
        """
        low, high = queue.min_offset, queue.visible
        while low < high:
            middle = (low + high) // 2
            stored = self.store_timestamp(queue, middle)
            before = stored <= timestamp_ms if upper else stored < timestamp_ms
            if stored and before:
                low = middle + 1
            else:
                high = middle
        return max(queue.min_offset, low - 1) if upper else low

    # ---- by key ----

    def query(
        self,
        topic: str,
        key: str,
        *,
        since: int,
        max_messages: int,
        begin_ms: int,
        end_ms: int,
        unique: bool,
        damaged: list[MessageCorrupted] | None,
    ) -> list[Record]:
        """Newest first; only what lies at the physical offset `since` or behind it."""
        result: list[Record] = []
        if self._index is None:
            return result
        try:
            self._dispatch.put_index()
        except OSError as error:
            raise StoreReadError(error) from error
        seen: set[int] = set()  # a key may stand in KEYS twice
        for place in self._index.find(topic, key, begin_ms, end_ms):
            if place in seen or place < since:
                continue
            seen.add(place)
            try:
                one = self.get(place)
            except (MessageNotFound, MessageCorrupted) as error:
                if damaged is not None and self._log.min_offset <= place < self._dispatch.confirmed:
                    damaged.append(self._indexed_damage(place, error))
                continue
            if not begin_ms <= one.store_timestamp_ms <= end_ms or one.topic != topic:
                continue
            keys = one.properties.get(props.KEYS, "").split(props.KEY_SEPARATOR)
            if one.unique_message_id == key or (not unique and key in keys):
                result.append(one)
                if len(result) >= max_messages:
                    break
        return result

    def _indexed_damage(self, place: int, error: MqError) -> MessageCorrupted:
        if isinstance(error, MessageCorrupted):
            return error
        reason = "the index names it, and no record starts there"
        return MessageCorrupted(self._log.path_of(place), place, reason)
