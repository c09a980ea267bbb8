"""Finds the messages of each lite topic within one queue of the parent topic.

All data is derived from the consume queue of the parent. Its units contain the code of the lite
topic (`lite_code`) in place of the tags code. The offset of a message is its queue offset in the
parent. Offsets never change, so a rebuild or the loss of these files does not move a group. The
*number* of a message counts from 0 within its lite topic. Numbers are only used for counting: a
rebuild gives the first stored message the number 0.

A lite topic that its TTL has removed (`expire`) is treated as if it had never existed. Its next
message starts a new chain of links. `Expirations` records the removals, so that a rebuild repeats
them.

The memory has a *head* of 56 bytes for each lite topic, free slots in the table of heads, and
links that are not in a complete block. The disk has a link of 32 bytes for each message
(`links.py`), and the heads of the last snapshot (`head_snapshot.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from aerobee_broker.disk import Disk
from aerobee_broker.store.lite import head_snapshot
from aerobee_broker.store.lite.code_table import CodeTable
from aerobee_broker.store.lite.expirations import Expirations
from aerobee_broker.store.lite.head_snapshot import HeadSnapshot, Position
from aerobee_broker.store.lite.links import LINK, NO_LINK, Link, LinkDamaged, LinkFile
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.messages import Unit

NO_CODE = 0  # code of a message that does not belong to a lite topic
_CODE_BYTES = 8
_UNITS = 4_096  # units that one call reads
_WRITE_BYTES = 64 * 512 * LINK.size  # of complete blocks: written without waiting for `write`
# Columns of a head: the last message, the target of its jump, and the target of that message's own
# jump. With the last two columns, most links are made without reading another link.
_LAST, _NUMBER, _JUMP, _JUMP_NUMBER, _FAR, _FAR_NUMBER = range(6)


T = TypeVar("T")


def lite_code(name: bytes) -> int:
    """Return the code of a lite topic: a signed 64-bit hash of its UTF-8 name, not 0.

    Two names may have the same code. Readers must therefore compare the names.
    """
    digest = hashlib.blake2b(name, digest_size=_CODE_BYTES).digest()
    return int.from_bytes(digest, "big", signed=True) or 1


@dataclass(frozen=True, slots=True)
class UnitSource:
    """Functions that read one consume queue of a parent topic.

    `units(from, count)` returns visible units, and an empty sequence if `from` is below
    `min_offset`. All functions raise StoreReadError.
    """

    min_offset: Callable[[], int]
    max_offset: Callable[[], int]
    units: Callable[[int, int], Sequence[Unit]]


class Found(NamedTuple):
    """A message, with its queue offset in the parent and its number in the lite topic."""

    queue_offset: int
    number: int


@dataclass(frozen=True, slots=True)
class Capture:
    """The data of a snapshot, which any thread may write.

    `write` syncs the files `unsynced` first.
    """

    disk: Disk
    folder: Path
    unsynced: Sequence[Path]
    snapshot: HeadSnapshot

    def write(self) -> None:
        """Write the snapshot durably. Raises OSError."""
        for path in self.unsynced:
            try:
                file = self.disk.open(path)
            except FileNotFoundError:
                continue  # its messages have expired meanwhile
            try:
                file.sync()
            finally:
                file.close()
        if self.unsynced:
            self.disk.sync_directory(self.folder)
        self.snapshot.write(self.disk, self.folder)


class LiteQueue:
    """The lite topics in one queue of a parent topic, with files in `folder`.

    One thread owns the object.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        open_files: OpenFiles,
        source: UnitSource,
        expirations: Expirations | None = None,
    ) -> None:
        self._disk = disk
        self.folder = folder
        self._source = source
        self._expirations = Expirations() if expirations is None else expirations
        self._floor = 0  # a lite topic has expired if its last message is below
        self._links = LinkFile(disk, folder, open_files)
        self._heads = CodeTable(6)
        self._captured = 0  # `end` of the last capture
        self.rebuilt = 0  # number of rebuilds

    def __len__(self) -> int:
        """Return the number of lite topics, including expired ones that are still in memory."""
        return len(self._heads)

    @property
    def end(self) -> int:
        """The queue offset after the last message that this object covers."""
        return self._links.end

    # ---- following the queue ----

    def open(self, most: int | None = None) -> None:
        """Load the last snapshot if it fits the queue, and add the messages after it.

        `most` limits the number of messages to add. Raises StoreReadError, OSError.
        """
        self._expirations.drop_beyond(self._source.max_offset())
        loaded = head_snapshot.load(self._disk, self.folder, self._heads)
        if loaded is None or not self._fits(loaded[0]):
            self.rebuild(most)
            return
        position, links = loaded
        self._links.load(position.first, position.tail_start, links)
        if self._links.end != position.end:
            self.rebuild(most)
            return
        self._captured = position.end
        self.catch_up(most)
        self._forget_all_expired()

    def _fits(self, position: Position) -> bool:
        end = position.end
        if end > self._source.max_offset():
            return False
        if end <= self._source.min_offset():
            return True  # no messages are left to compare it with
        units = self._source.units(end - 1, 1)
        return bool(units) and units[0][0] == position.physical_offset

    def rebuild(self, most: int | None = None) -> None:
        """Rebuild everything from the consume queue. Raises StoreReadError, OSError.

        `most` limits the number of messages to add now.
        """
        self.rebuilt += 1
        self._heads.clear()
        self._links.reset()
        self._links.start_at(self._source.min_offset())
        self._captured = 0
        self.catch_up(most)
        self._forget_all_expired()

    def catch_up(self, most: int | None = None) -> bool:
        """Add the messages of the consume queue that are missing here.

        Stop after at least `most` messages, and return True, if more are left. Raises
        StoreReadError, OSError.
        """
        low = self._source.min_offset()
        if self.end < low:  # the messages between have expired
            self._heads.clear()
            self._links.reset()
            self._links.start_at(low)
        begin = self.end
        while (at := self.end) < self._source.max_offset():
            if most is not None and at - begin >= most:
                return True
            units = self._source.units(at, _UNITS)
            if not units:
                break
            self._extend([code for _, _, code in units])
        return False

    def extend(self, first_offset: int, units: Iterable[Unit]) -> dict[int, None]:
        """Add messages that have become visible, with queue offsets from `first_offset` on.

        Return the codes of their lite topics, in the order of first occurrence. Raises
        StoreReadError, OSError.
        """
        found = [code for _, _, code in units]
        if first_offset == self.end:
            self._extend(found)
        else:
            self.catch_up()
        codes = dict.fromkeys(found)
        codes.pop(NO_CODE, None)
        return codes

    def _extend(self, codes: Iterable[int]) -> None:
        until = self.end
        try:
            for at, code in enumerate(codes, self.end):
                if at >= until:
                    self._floor, until = self._expirations.at(at)
                if code == NO_CODE:
                    self._links.append(NO_LINK)
                else:
                    self._add(code, at)
        except LinkDamaged:
            self.rebuild()  # it reads the whole queue, including the remaining codes
        if len(self._links.tail) >= _WRITE_BYTES:
            with suppress(OSError):  # they stay in memory, and the next `write` raises the error
                self._links.write()

    def _add(self, code: int, at: int) -> None:
        heads = self._heads
        slot = heads.slot(code)
        if slot < 0 or heads.columns[_LAST][slot] < self._floor:
            self._links.append(LINK.pack(0, -1, at, 0))
            heads.put(code, at, 0, at, 0, at, 0)
            return
        last, number, jump, jump_number, far, far_number = (
            column[slot] for column in heads.columns
        )
        below = self._links.get(far) if number - jump_number == jump_number - far_number else None
        if below is not None:
            jump, jump_number, far, far_number = far, far_number, below.jump, below.jump_number
        else:
            jump, jump_number, far, far_number = last, number, jump, jump_number
        self._links.append(LINK.pack(number + 1, last, jump, jump_number))
        numbers = at, number + 1, jump, jump_number, far, far_number
        for column, value in zip(heads.columns, numbers, strict=True):
            column[slot] = value

    # ---- finding messages ----

    def last(self, code: int) -> Found | None:
        """Return the last message of a lite topic, or None if it has none."""
        slot = self._heads.slot(code)
        if slot < 0:
            return None
        columns = self._heads.columns
        queue_offset = columns[_LAST][slot]
        return Found(queue_offset, columns[_NUMBER][slot]) if queue_offset >= self._floor else None

    def first_from(self, code: int, queue_offset: int) -> Found | None:
        """Return the first message of a lite topic at or after this queue offset.

        Raises StoreReadError, OSError.
        """
        low = max(queue_offset, self._source.min_offset())
        head = self.last(code)
        if head is None or head.queue_offset < low:
            return None
        return self._guarded(lambda: self._descend(code, low, -1))

    def offsets(self, code: int, queue_offset: int, count: int) -> list[int]:
        """Return the offsets of up to `count` messages of a lite topic at or after this offset.

        Raises StoreReadError, OSError.
        """
        first, head = self.first_from(code, queue_offset), self.last(code)
        if first is None or head is None:
            return []
        if first.number == head.number:
            return [first.queue_offset]
        wanted = min(first.number + count - 1, head.number)
        return self._guarded(lambda: self._between(code, first, wanted))

    def at_number(self, code: int, number: int) -> Found | None:
        """Return the message with this number, or the first stored message after it.

        Return None if no such message exists. Raises StoreReadError, OSError.
        """
        head = self.last(code)
        low = self._source.min_offset()
        if head is None or head.number < number or head.queue_offset < low:
            return None
        return self._guarded(lambda: self._descend(code, low, number))

    def count_from(self, code: int, queue_offset: int) -> int:
        """Return how many messages of a lite topic are at or after this queue offset.

        Raises StoreReadError, OSError.
        """
        head = self.last(code)
        if head is None or not head.number:  # it is the first message: no link needs to be read
            low = max(queue_offset, self._source.min_offset())
            return int(head is not None and head.queue_offset >= low)
        first, head = self.first_from(code, queue_offset), self.last(code)
        return head.number - first.number + 1 if first and head else 0

    def codes_below(self, queue_offset: int) -> list[int]:
        """Return the codes of the lite topics whose last message is below this queue offset."""
        return self._heads.codes_where_below(_LAST, queue_offset)

    def codes(self) -> list[int]:
        return list(self._heads)

    def ends(self) -> list[tuple[int, int]]:
        """Return the code and the number of the last message of each lite topic."""
        rows = self._heads.rows(_LAST, _NUMBER)
        return [(code, number) for code, last, number in rows if last >= self._floor]

    # ---- expiry by TTL ----

    def expire(self, floor: int) -> list[tuple[int, int]]:
        """Remove every lite topic without a message at or after this queue offset.

        Return the code and the last queue offset of each removed lite topic. `forget_expired` later
        frees its memory.
        """
        end = self.end
        expired = self._heads.codes_where_below(_LAST, min(floor, end))
        if not expired or not self._expirations.add(end, min(floor, end)):
            return []
        before, (self._floor, _) = self._floor, self._expirations.at(end)
        columns = self._heads.columns
        found = [(code, columns[_LAST][self._heads.slot(code)]) for code in expired]
        return [(code, last) for code, last in found if last >= before]

    def count_back(self, last: int, queue_offset: int) -> int:
        """Count the messages of a lite topic from this queue offset up to its message at `last`.

        The method also counts the messages of an expired lite topic. Raises StoreReadError,
        OSError.
        """
        low = max(queue_offset, self._source.min_offset())
        if last < low:
            return 0

        def count() -> int:
            link = self._link(last)
            return link.number - self._descend_from(last, link, low, -1).number + 1

        return self._guarded(count)

    def forget_expired(self, code: int) -> None:
        """Free the memory of an expired lite topic, unless it has a new message."""
        slot = self._heads.slot(code)
        if slot >= 0 and self._heads.columns[_LAST][slot] < self._floor:
            self._heads.remove(code)

    def _forget_all_expired(self) -> None:
        self._floor, _ = self._expirations.at(self.end)
        if self._floor:
            for code in self.codes_below(self._floor):
                self._heads.remove(code)

    # ---- steps ----

    def _link(self, queue_offset: int) -> Link:
        found = self._links.get(queue_offset)
        if found is None:
            raise LinkDamaged(f"there is no link for queue offset {queue_offset}")
        return found

    def _descend(self, code: int, low: int, number: int) -> Found:
        """Walk back from the newest message to the oldest one that both limits allow.

        Its queue offset is at least `low`, and its number is at least `number`.
        """
        at = self._heads.columns[_LAST][self._heads.slot(code)]
        return self._descend_from(at, self._link(at), low, number)

    def _descend_from(self, at: int, link: Link, low: int, number: int) -> Found:
        while True:
            if link.jump >= low and link.jump_number >= number and link.jump != at:
                before = link.jump
            elif link.previous >= low and link.number > number:
                before = link.previous
            else:
                return Found(at, link.number)
            found = self._links.get(before)
            if found is None:  # older files were removed with their messages
                return Found(at, link.number)
            at, link = before, found

    def _between(self, code: int, first: Found, number: int) -> list[int]:
        at = self._descend(code, first.queue_offset, number).queue_offset
        offsets = [at]
        while at > first.queue_offset:
            at = self._link(at).previous
            offsets.append(at)
        offsets.reverse()
        return offsets

    def _guarded(self, find: Callable[[], T]) -> T:
        """Run `find`. If a link is damaged, rebuild and retry. Raises StoreReadError, OSError."""
        try:
            return find()
        except LinkDamaged:
            self.rebuild()
        try:
            return find()
        except LinkDamaged as error:
            raise OSError(str(error)) from error

    # ---- upkeep ----

    def write(self) -> None:
        """Write complete blocks of links to the operating system.

        Raises OSError. After an error, the remaining blocks stay in memory.
        """
        self._links.write()

    def trim(self) -> None:
        """Drop the data of messages that have expired. Raises OSError, StoreReadError."""
        low = self._source.min_offset()
        self._links.trim_to(low)
        self._expirations.trim_to(low)
        for code in self.codes_below(low):
            self._heads.remove(code)

    @property
    def uncaptured(self) -> int:
        """The number of messages after the last snapshot, which a start would read again."""
        return self.end - self._captured

    def capture(self) -> Capture | None:
        """Return the data of a snapshot of everything. The caller must write it.

        Return None if there is nothing to write. Raises OSError, StoreReadError.
        """
        self._links.write()
        end = self.end
        units = self._source.units(end - 1, 1) if end else ()
        if not units:
            return None
        links = self._links
        position = Position(links.first, links.tail_start, end, units[0][0])
        unsynced = sorted(links.unsynced)
        links.unsynced.clear()
        self._captured = end
        snapshot = HeadSnapshot(position, bytes(links.tail), self._heads.to_bytes())
        return Capture(self._disk, self.folder, unsynced, snapshot)

    def not_captured(self, capture: Capture) -> None:
        """Note that the result of `capture` could not be written."""
        self._links.unsynced.update(capture.unsynced)
        self._captured = 0
