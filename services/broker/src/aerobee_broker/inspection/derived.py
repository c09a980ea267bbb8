"""Compares the consume queues and the index of a store with new ones derived from its log."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aerobee_broker.delivery.delay.levels import FIRST_OWN_QUEUE
from aerobee_broker.inspection.stopped_store import Problem, StoppedStore, size_of
from aerobee_broker.store.derived.consume_queue import UNIT_SIZE, ConsumeQueues
from aerobee_broker.store.derived.index import (
    ENTRY,
    ENTRY_LAYOUT,
    HEADER,
    NAME_DIGITS,
    SLOT_SIZE,
    Index,
    IndexFile,
)
from aerobee_broker.store.log.commit_log import file_name
from aerobee_broker.store.messages import UNIT
from aerobee_broker.store.options import StoreOptions
from aerobee_wire import topics as names

_UNITS = 65_536  # units that one step compares: 1.3 MB
_REPORTED_A_QUEUE = 3  # differing units of one queue that are reported one by one
_ENTRY = np.dtype(ENTRY_LAYOUT.array_fields())
Entries = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares consume queues and index, and adds differences to `store.problems`.

    A difference that other options of the broker explain is added to `notes`.
    """

    store: StoppedStore
    options: StoreOptions
    notes: list[str] = field(default_factory=list)

    # ---- consume queues ----

    def queues(self, expected: ConsumeQueues) -> tuple[int, int]:
        """Compare the consume queues. Return the number of queues and of compared units.

        `expected` has the queues that were derived from the log. Units whose records the checkpoint
        does not cover are not compared, because the next start writes them.
        """
        store = self.store
        if store.checkpoint is None:
            return 0, 0
        limit = store.checkpoint.dispatched
        folder, file_size = store.path / "consumequeue", self.options.consume_queue_file_size
        found = ConsumeQueues(store.disk, folder, file_size, store.open_files, {})
        found.load(limit)
        compared = 0
        for name, queue in sorted(expected.table.items()):
            end = expected.first_at_or_after(queue, limit)
            if end > queue.first:
                compared += self._queue(expected, found, name, end)
        for name, queue in sorted(found.table.items()):
            if queue.visible > queue.first and name not in expected.table:
                self._report(found.directory(queue), "its units belong to no record of the log")
        return len(expected.table), compared

    def _queue(
        self, expected: ConsumeQueues, found: ConsumeQueues, name: tuple[str, int], end: int
    ) -> int:
        """Compare the units of a queue below the queue offset `end`, and return their number."""
        queue, other = expected.table[name], found.make(*name)
        directory = found.directory(other)
        if other.visible != end:
            ends = f"its units end at queue offset {other.visible}, those of the log at {end}"
            self._report(directory, ends)
        begin, stop = max(queue.first, other.first), min(end, other.visible)
        by_level = name[0] == names.SCHEDULE_TOPIC and name[1] < FIRST_OWN_QUEUE
        differing = other_delays = 0
        for offset in range(begin, stop, _UNITS):
            count = min(_UNITS, stop - offset)
            wanted = expected.units(queue, offset, count)
            there = found.units(other, offset, count)
            if wanted != there:
                for at in _differing(wanted, there):
                    unit = slice(at * UNIT_SIZE, (at + 1) * UNIT_SIZE)
                    if by_level and _has_another_delay(wanted[unit], there[unit]):
                        other_delays += 1
                        continue
                    if differing < _REPORTED_A_QUEUE:
                        self._report_unit(directory, offset + at, wanted[unit], there[unit])
                    differing += 1
        if differing > _REPORTED_A_QUEUE:
            more = f"{differing - _REPORTED_A_QUEUE} more units differ from the log"
            self._report(directory, more)
        if other_delays:
            self.notes.append(
                f"{other_delays:,} messages of delay level {name[1] + 1} have another deliver time "
                "than messageDelayLevel gives: it was changed since, or the broker's options are "
                "not these (--config)"
            )
        return max(0, stop - begin)

    def _report_unit(self, directory: Path, queue_offset: int, wanted: bytes, there: bytes) -> None:
        file_size = self.options.consume_queue_file_size
        start = queue_offset * UNIT_SIZE // file_size
        right, wrong = UNIT.unpack(wanted), UNIT.unpack(there)
        what = f"the unit of queue offset {queue_offset} is {wrong}, and the log says {right}"
        path = directory / file_name(start * file_size)
        self._report(path, f"{what} (physical offset, size, tags code)")

    # ---- index ----

    def index(self, expected: Index) -> int:
        """Compare the index. Return the number of compared entries.

        `expected` is the index that was derived from the log. Entries of records that the
        checkpoint does not cover are not compared.
        """
        store, options = self.store, self.options
        if store.checkpoint is None:
            return 0
        state = store.checkpoint.index
        folder = store.path / "index"
        names = [n for n in store.disk.list(folder) if len(n) == NAME_DIGITS and n.isdigit()]
        names = [name for name in names if int(name) <= state.last_name]
        size = HEADER.size + options.index_slot_count * SLOT_SIZE
        size += options.index_entry_count * ENTRY.size
        parts = []
        for name in names:
            path = folder / name
            if size_of(store.disk, path) != size:
                self._report(path, f"it should have {size} bytes (maxHashSlotNum, maxIndexNum)")
                continue
            last = int(name) == state.last_name
            parts.append(self._entries(path, state.index_count if last else 0))
            if store.clean or not last:
                self._check_chains(path, parts[-1])
        found = _joined(parts)
        wanted = _joined([self._entries(file.path, file.count) for file in expected.files])
        low = max(store.log.starts[0] if store.log.starts else 0, _lowest(found))
        right = _pairs(wanted, low, state.end_offset)
        there = _pairs(found, low, state.end_offset)
        if not np.array_equal(right, there):
            missing, extra = np.setdiff1d(right, there), np.setdiff1d(there, right)
            what = f"{len(missing)} keys of the log are missing, {len(extra)} belong to no record"
            first = next(iter([*missing.tolist(), *extra.tolist()]), None)
            self._report(folder, what + (f"; the first lies at {first[0]}" if first else ""))
        return len(right)

    def _entries(self, path: Path, count: int) -> Entries:
        """Return the entries of an index file. If `count` is 0, take the count from its header."""
        file = self.store.open_files.get(path)
        if not count:
            count = IndexFile.of_header(path, file.pread(HEADER.size, 0)).count
        at = HEADER.size + self.options.index_slot_count * SLOT_SIZE + ENTRY.size
        return np.frombuffer(file.pread((count - 1) * ENTRY.size, at), dtype=_ENTRY)

    def _check_chains(self, path: Path, entries: Entries) -> None:
        """Check the links of an index file.

        Each hash slot must point to its newest entry, and each entry to the previous one.
        """
        slot_count = self.options.index_slot_count
        slots = entries["hash"].astype(np.int64) % slot_count
        order = np.argsort(slots, kind="stable")
        numbers = order + 1
        same = slots[order][1:] == slots[order][:-1]
        before = np.zeros(len(entries), dtype=np.int64)
        before[order[1:]] = np.where(same, numbers[:-1], 0)
        if (wrong := np.flatnonzero(before != entries["previous"])).size:
            first = wrong[0] + 1
            self._report(path, f"{wrong.size} entries are chained wrongly, the first is {first}")
        newest = np.zeros(slot_count, dtype=np.int64)
        newest[slots] = np.arange(1, len(entries) + 1)
        file = self.store.open_files.get(path)
        there = np.frombuffer(file.pread(slot_count * SLOT_SIZE, HEADER.size), ">i4")
        if (wrong := np.flatnonzero(newest != there)).size:
            self._report(path, f"{wrong.size} hash slots are wrong, the first is {wrong[0]}")

    def _report(self, path: Path, what: str) -> None:
        self.store.problems.append(Problem(path, what))


def _differing(wanted: bytes, there: bytes) -> list[int]:
    """Return the numbers of the units that differ between two sequences of units."""
    pairs = range(0, len(wanted), UNIT_SIZE)
    return [
        at // UNIT_SIZE for at in pairs if wanted[at : at + UNIT_SIZE] != there[at : at + UNIT_SIZE]
    ]


def _has_another_delay(wanted: bytes, there: bytes) -> bool:
    """Return whether two units differ only in the deliver time, by whole seconds.

    Delays of levels are whole seconds. A flipped bit never changes a time by whole seconds, because
    a power of 2 is not a multiple of 1,000.
    """
    *right, right_ms = UNIT.unpack(wanted)
    *found, found_ms = UNIT.unpack(there)
    return right == found and (found_ms - right_ms) % 1_000 == 0


def _joined(parts: list[Entries]) -> Entries:
    return np.concatenate(parts) if parts else np.empty(0, dtype=_ENTRY)


def _lowest(entries: Entries) -> int:
    return int(entries["physical_offset"].min()) if len(entries) else 0


def _pairs(entries: Entries, low: int, end: int) -> Entries:
    """Return the sorted (physical offset, hash) of entries whose records are in [low, end)."""
    physical_offsets = entries["physical_offset"]
    chosen = entries[(physical_offsets >= low) & (physical_offsets < end)]
    pairs = np.empty(len(chosen), dtype=[("physical_offset", np.int64), ("hash", np.int64)])
    pairs["physical_offset"], pairs["hash"] = chosen["physical_offset"], chosen["hash"]
    return np.sort(pairs)
