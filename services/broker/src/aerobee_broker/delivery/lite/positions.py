"""The positions of groups in lite topics, and the expirations of lite topics.

A position is the queue offset, in the parent topic, of the next message that a group consumes.
Positions are stored in arrays, without an object per lite topic. An expiration records which lite
topics were deleted by their TTL.

All changes are durable in the lease journal of lite topics. The file `liteOffsets` only makes
startup faster. It contains the journal offset that it covers, and is written after enough changes.
The format of the file:

    1. A header.
    2. For each group and queue of a parent: the lengths, the names, the number of slots of the
       table, and the columns of the table.
    3. For each queue of a parent with expirations: the same fields without a group. The columns are
       all ends and all floors.

    Columns are in the byte order of the machine. All other numbers are big-endian.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

import structlog
from isal.isal_zlib import crc32

from aerobee_broker.delivery.lite.lines import line
from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.offset_history import Mover
from aerobee_broker.store.lite.code_table import CODE_BYTES, CodeTable
from aerobee_broker.store.lite.expirations import OFFSET_BYTES, ParentExpirations
from aerobee_chassis.clock import Clock

_HEADER = struct.Struct(
    ">4s"  # magic
    "H"  # version
    "H"  # byte order of the tables: 0 little, 1 big
    "q"  # queue offset in the journal; the file covers all records below it
    "I"  # number of tables
    "I"  # CRC-32 of all other bytes of the file
)
_TABLE = struct.Struct(
    ">H"  # bytes of the group's name
    "H"  # bytes of the parent's name
    "i"  # queue id
    "I"  # number of slots, or of expirations
)
assert (_HEADER.size, _TABLE.size) == (24, 12)
assert OFFSET_BYTES == CODE_BYTES
_CRC_BYTES = 4
_MAGIC, _VERSION = b"ALOF", 2
_READ_VERSIONS = (1, _VERSION)  # version 1 has no expirations
_BYTE_ORDER = int(sys.byteorder == "big")
_FEWEST_CHANGES = 1_024

_Key = tuple[str, str, int]  # group, parent, queue id


class LitePositions(ConsumerOffsets):
    """The positions of groups in lite topics. Replaces ConsumerOffsets for leases of lite topics.

    `changes` is the number of changes since the last call of `to_bytes`.
    """

    def __init__(self, clock: Clock, expirations: ParentExpirations) -> None:
        super().__init__(clock)
        self.expirations = expirations
        self._tables: dict[_Key, CodeTable] = {}
        self.changes = 0
        self.loaded_position = 0  # queue offset in the journal, from the file

    def __len__(self) -> int:
        return sum(map(len, self._tables.values())) + len(self.expirations)

    @property
    def is_due(self) -> bool:
        """Return whether there are enough changes to write the file."""
        return self.changes >= max(_FEWEST_CHANGES, len(self) // 4)

    # ---- the interface of ConsumerOffsets, for lines ----

    def get(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        parent, _, code = line(topic)
        return self.position(consumer_group, parent, queue_id, code)

    def position(self, consumer_group: str, parent: str, queue_id: int, code: int) -> int | None:
        table = self._tables.get((consumer_group, parent, queue_id))
        slot = table.slot(code) if table is not None else -1
        return table.columns[0][slot] if table is not None and slot >= 0 else None

    def commit(
        self,
        consumer_group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        mover: Mover | None = None,
    ) -> None:
        """Set a position. There is no history of positions in lite topics."""
        parent, _, code = line(topic)
        if self.position(consumer_group, parent, queue_id, code) != queue_offset:
            key = (consumer_group, parent, queue_id)
            table = self._tables.get(key)
            if table is None:
                table = self._tables[key] = CodeTable(1)
            table.put(code, queue_offset)
            self.changes += 1

    def reset(
        self,
        consumer_group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        mover: Mover | None = None,
    ) -> None:
        self.commit(consumer_group, topic, queue_id, queue_offset)

    def take_reset(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        """Return None, because a reset of a lite topic applies to its leases immediately."""
        return None

    def begun(self) -> set[str]:
        return set()

    def remove_topic(self, topic: str) -> None:
        """Remove the positions of all groups in a lite topic."""
        parent, _, code = line(topic)
        for (_, its_parent, _), table in self._tables.items():
            if its_parent == parent:
                self.changes += table.remove(code)

    def remove_parent(self, parent: str) -> None:
        self._forget([key for key in self._tables if key[1] == parent])
        self.changes += self.expirations.remove_parent(parent)

    def remove_group(self, consumer_group: str) -> None:
        self._forget([key for key in self._tables if key[0] == consumer_group])

    def parents(self) -> set[str]:
        """Return the parent topics that have positions or expirations."""
        return {parent for _, parent, _ in self._tables} | self.expirations.parents()

    def has_group(self, consumer_group: str) -> bool:
        return any(key[0] == consumer_group for key in self._tables)

    # ---- expiry by TTL ----

    def expire(self, parent: str, queue_id: int, end: int, floor: int) -> None:
        """Record that lite topics of a queue were deleted by their TTL.

        These are the ones without a message at or after `floor` when `end` was the queue's end.
        """
        self.changes += self.expirations.of(parent, queue_id).add(end, floor)

    def note_change(self) -> None:
        """Count a change of the expirations."""
        self.changes += 1

    def forget_code(self, parent: str, queue_id: int, code: int) -> None:
        """Remove the positions of all groups in a lite topic that has expired."""
        for (_, its_parent, its_queue_id), table in self._tables.items():
            if (its_parent, its_queue_id) == (parent, queue_id):
                self.changes += table.remove(code)

    def keep_only(self, parent: str, queue_id: int, codes: set[int]) -> None:
        """Remove the positions in all lite topics of a queue except the given ones.

        The other lite topics have no messages. Their next message will be above these positions, so
        the positions are not needed.
        """
        for (_, its_parent, its_queue_id), table in self._tables.items():
            if (its_parent, its_queue_id) == (parent, queue_id):
                for code in set(table) - codes:
                    self.changes += table.remove(code)

    def end_at(self, max_offset: Callable[[str, int], int], journal_end: int) -> None:
        """Lower positions that are beyond the end of their queue, after `load_bytes`.

        The file is newer than the log if only the log was restored from a backup. Such a position
        would hide the next messages. `max_offset` returns the end of a queue of a parent.
        """
        lowered = 0
        for (_, parent, queue_id), table in self._tables.items():
            lowered += table.lower(0, max_offset(parent, queue_id))
        if lowered:
            structlog.get_logger().warning("lite_offsets_beyond_log", lite_topics=lowered)
        is_newer = self.loaded_position > journal_end
        if is_newer:  # later records get the numbers of those that the file covers
            self.loaded_position = 0
        self.changes += lowered + is_newer

    def _forget(self, keys: list[_Key]) -> None:
        for key in keys:
            self.changes += max(1, len(self._tables.pop(key)))

    # ---- the file ----

    def to_bytes(self, journal_position: int) -> list[bytes]:
        """Return the content of the file in parts. The CRC in the header is 0."""
        self.changes = 0
        tables = [(*key, table.to_bytes()) for key, table in self._tables.items()]
        for parent, queue_id, expirations in self.expirations:
            tables.append(("", parent, queue_id, expirations.to_bytes()))
        parts = [_HEADER.pack(_MAGIC, _VERSION, _BYTE_ORDER, journal_position, len(tables), 0)]
        for group, parent, queue_id, columns in tables:
            names = group.encode(), parent.encode()
            slots = len(columns[0]) // CODE_BYTES
            parts.append(_TABLE.pack(len(names[0]), len(names[1]), queue_id, slots))
            parts += (*names, *columns)
        return parts

    def clear(self) -> None:
        """Remove all positions and expirations."""
        self._tables = {}
        self.expirations.clear()

    def load_bytes(self, data: bytes) -> bool:
        """Load the content of the file.

        Returns False, without a change, if the content is damaged.
        """
        if len(data) < _HEADER.size:
            return False
        magic, version, order, position, count, crc = _HEADER.unpack_from(data)
        rest = data[_HEADER.size :]
        if (magic, order) != (_MAGIC, _BYTE_ORDER) or version not in _READ_VERSIONS:
            return False
        if crc != crc32(rest, crc32(data[: _HEADER.size - _CRC_BYTES])):
            return False
        at = 0

        def take(size: int) -> bytes:
            nonlocal at
            at += size
            return rest[at - size : at]

        self.clear()
        for _ in range(count):
            group_bytes, parent_bytes, queue_id, slots = _TABLE.unpack(take(_TABLE.size))
            names = take(group_bytes).decode(), take(parent_bytes).decode()
            columns = take(slots * CODE_BYTES), take(slots * CODE_BYTES)
            group, parent = names
            if group:
                table = self._tables[group, parent, queue_id] = CodeTable(1)
                table.load(columns)
            else:
                self.expirations.of(parent, queue_id).load(*columns)
        self.loaded_position = position
        return True


class PositionsFile:
    """The file `liteOffsets`, which contains the positions and expirations.

    Any thread may call the functions that `writer` returns.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk

    def load(self, positions: LitePositions) -> bool:
        """Load the file into `positions`. Raises OSError.

        Returns False if the file is missing or damaged. The caller must then read the whole
        journal.
        """
        try:
            return positions.load_bytes(read_file(self._disk, self.path))
        except FileNotFoundError:
            return False

    def writer(self, parts: list[bytes]) -> Callable[[], None]:
        """Return a function that replaces the file durably. The function raises OSError.

        `parts` is the result of `LitePositions.to_bytes`.
        """

        def write() -> None:
            head, rest = parts[0][:-_CRC_BYTES], parts[1:]
            crc = crc32(head)
            for part in rest:
                crc = crc32(part, crc)
            data = b"".join((head, crc.to_bytes(_CRC_BYTES, "big"), *rest))
            replace_file(self._disk, self.path, data)

        return write
