"""Derives consume queue units and index keys from records of the log, with arrays.

The result is the same as that of Dispatch at an append. Recovery, replicas and the check of a
stopped store use this module. Its only decision is whether a record fits into its queue.

If a queue begins at offset 0 again, its topic was deleted in between, also if the list of deleted
topics does not say so. The earlier messages would otherwise hide the later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from aerobee_broker.store.damage import DamageListener
from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.derived.keys import Keys, Properties
from aerobee_broker.store.derived.record_columns import Ints
from aerobee_broker.store.derived.topic_encoding import TagsCode
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.messages import UNIT, UNIT_LAYOUT, Arrival
from aerobee_broker.store.recovery.scan import ByQueue, Records
from aerobee_wire import record

Mask = npt.NDArray[np.bool_]
Units = npt.NDArray[Any]

UNIT_TYPE = np.dtype(UNIT_LAYOUT.array_fields())
_OPAQUE = np.dtype(f"V{UNIT.size}")  # a unit as bytes: ten times as fast to copy as its fields
_TRANSACTION = record.TRANSACTION_MASK


@dataclass(slots=True, kw_only=True)
class Deriver:
    """Derives consume queue units and index keys.

    Records before the physical offset `queues_from` already have units, and records before
    `index_from` are already in the index. `halt_queue` is a topic and queue id. Deriving stops
    after a record of that queue.
    """

    log: CommitLog
    dispatch: Dispatch
    on_damage: DamageListener
    # Called with a topic, and a physical offset below which its records are deleted, if the list
    # of deleted topics lacks a deletion that the log proves.
    on_deletion: Callable[[str, int], None]
    deleted_topics: Mapping[str, int]
    queues_from: int
    index_from: int
    lost_bytes: int = 0
    # Receives an arrival for each queue with new visible messages, if it is given.
    arrivals: list[Arrival] | None = None
    halt_queue: tuple[str, int] | None = None
    halted_at: int | None = None  # physical offset at which the first record of that queue ends
    _found_deletions: dict[str, int] = field(default_factory=dict)  # as `on_deletion` got them

    def add_lost_bytes(self, count: int) -> None:
        """Count bytes of the log that are damaged.

        They limit the number of missing messages in a queue: their records must fit into the
        damaged bytes.
        """
        self.lost_bytes += count

    def derive(self, records: Records, end: int) -> None:
        """Add units and index keys of records that end at the physical offset `end`.

        Raises OSError.
        """
        units = 0
        if len(records):
            by_queue = records.by_queue()
            before = self._until_halt(by_queue)
            if before < len(records):
                records = records.first(before)
                by_queue = records.by_queue()
            if before <= len(records):
                self.halted_at = end = int(records.physical_offsets[-1] + records.sizes[-1])
            properties = records.joined_properties()
            queues = [
                self.dispatch.queues.make(topic.decode("utf-8", "replace"), queue_id)
                for topic, queue_id in by_queue.queues
            ]
            alive = self._alive(records, queues, by_queue.numbers)
            if self.dispatch.index is not None:
                self._derive_keys(records, properties, alive, queues, by_queue.numbers)
            units = self._derive_units(records, properties, alive, queues, by_queue)
            self._add_steps(records)
        last_ms = int(records.stored_ms[-1]) if len(records) else 0
        self.dispatch.recover(units, end, last_ms)

    def _add_steps(self, records: Records) -> None:
        """Record where the store times of records decrease."""
        stored_ms = records.stored_ms
        steps = self.dispatch.time_steps
        if int(stored_ms[0]) < self.dispatch.stored_ms:
            steps.add(int(records.physical_offsets[0]), self.dispatch.stored_ms)
        for at in np.flatnonzero(stored_ms[1:] < stored_ms[:-1]).tolist():
            steps.add(int(records.physical_offsets[at + 1]), int(stored_ms[at]))

    def _until_halt(self, by_queue: ByQueue) -> int:
        """Return the number of records up to and including the first one of the halt queue.

        Return a number higher than that of all records if none is in the halt queue.
        """
        if self.halt_queue is not None:
            topic, queue_id = self.halt_queue
            key = (topic.encode(), queue_id)
            if key in by_queue.queues:
                number = by_queue.queues.index(key)
                return int(by_queue.order[by_queue.bounds[number]]) + 1
        return len(by_queue.numbers) + 1

    def _alive(self, records: Records, queues: list[ConsumeQueue], numbers: Ints) -> Mask:
        """Return a mask of the records whose topic was not deleted after them."""
        deleted_below = [self.deleted_topics.get(queue.topic.name, 0) for queue in queues]
        if not any(deleted_below):
            return np.ones(len(records), dtype=bool)
        return np.asarray(records.physical_offsets >= np.array(deleted_below)[numbers])

    def _derive_keys(
        self,
        records: Records,
        properties: Properties,
        alive: Mask,
        queues: list[ConsumeQueue],
        numbers: Ints,
    ) -> None:
        of, starts, ends = properties.keys()
        if not len(of):
            return
        kept = (
            alive
            & (records.physical_offsets >= self.index_from)
            & (records.sys_flags & _TRANSACTION != record.TRANSACTION_ROLLBACK)
        )
        if not kept.all():
            wanted = kept[of]
            of, starts, ends = of[wanted], starts[wanted], ends[wanted]
        prefixes = np.array([queue.topic.key_hash for queue in queues], dtype=np.uint32)
        hashes = properties.hashes(starts, ends, prefixes[numbers[of]])
        keys = Keys(hashes, records.physical_offsets[of], records.stored_ms[of])
        self.dispatch.recover_keys(keys)

    def _derive_units(
        self,
        records: Records,
        properties: Properties,
        alive: Mask,
        queues: list[ConsumeQueue],
        by_queue: ByQueue,
    ) -> int:
        """Add consume queue units for records. Return the number of units."""
        transaction = records.sys_flags & _TRANSACTION
        with_unit = (
            alive
            & (records.physical_offsets >= self.queues_from)
            & (transaction != record.TRANSACTION_PREPARED)
            & (transaction != record.TRANSACTION_ROLLBACK)
        )
        order, bounds = by_queue.order, by_queue.bounds
        if not with_unit.all():
            chosen = with_unit[order]
            order = order[chosen]
            bounds = np.concatenate(([0], np.cumsum(chosen)))[bounds]
        units = np.empty(len(records), dtype=UNIT_TYPE)
        units["physical_offset"], units["size"] = records.physical_offsets, records.sizes
        units["tags_code"] = properties.tags_codes(len(records))
        for queue, start, end in zip(queues, bounds.tolist(), bounds[1:].tolist(), strict=False):
            if queue.topic.tags_code is not None:
                self._custom_codes(queue.topic.tags_code, records, order[start:end], units)
        return self._add_all(queues, records, order, bounds, units)

    def _add_all(
        self,
        queues: list[ConsumeQueue],
        records: Records,
        order: Ints,
        bounds: Ints,
        units: Units,
    ) -> int:
        next_offsets = np.array([queue.next_offset for queue in queues], dtype=np.int64)
        expected = np.repeat(next_offsets - bounds[:-1], np.diff(bounds)) + np.arange(len(order))
        regular = bool((records.queue_offsets[order] == expected).all())
        added = units.view(_OPAQUE)[order].tobytes()
        count = 0
        for queue, start, end in zip(queues, bounds.tolist(), bounds[1:].tolist(), strict=False):
            if start == end:
                continue
            if regular:
                queue.tail += added[start * UNIT.size : end * UNIT.size]
                queue.next_offset += end - start
            else:
                self._add_units(queue, records, order[start:end], units)
            if self.arrivals is not None:
                self.arrivals.append(_arrival(queue))
            count += queue.next_offset - queue.visible
            queue.visible = queue.next_offset
            self.dispatch.queues.unwritten[queue] = None
        return count

    def _custom_codes(self, code: TagsCode, records: Records, members: Ints, units: Units) -> None:
        properties = records.properties()
        for at in members.tolist():
            units["tags_code"][at] = code(properties[at], int(records.stored_ms[at]))

    def _add_units(
        self, queue: ConsumeQueue, records: Records, members: Ints, units: Units
    ) -> None:
        """Add units to one queue, in the order of the log. Report records that do not fit."""
        queue_offsets = records.queue_offsets[members].tolist()
        for at, queue_offset in zip(members.tolist(), queue_offsets, strict=True):
            physical_offset = int(records.physical_offsets[at])
            if physical_offset < self._found_deletions.get(queue.topic.name, 0):
                continue
            if (
                queue_offset == queue.next_offset
                or self._fits(queue, queue_offset, physical_offset)
                or (records.is_proven(at) and self._begins_again(queue, queue_offset))
            ):
                queue.tail += units[at].tobytes()
                queue.next_offset = queue_offset + 1
            else:
                reason = f"queue offset {queue_offset} where {queue.next_offset} was due"
                self.on_damage(self.log.path_of(physical_offset), physical_offset, reason)
                self.add_lost_bytes(int(records.sizes[at]))

    def _fits(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> bool:
        """Prepare a queue for a record whose queue offset is not the next one.

        The record is valid if the queue begins with it because earlier records have expired, or if
        the records before it are lost. Return False if the record is invalid.
        """
        gap = queue_offset - queue.next_offset
        if queue_offset * record.FIXED_V1 > physical_offset:
            return False  # that number of records cannot fit before this one
        if self.log.min_offset > 0 and self.dispatch.queues.is_at_rebuild_start(queue):
            self.dispatch.restart(queue, queue_offset)
            return True
        if gap < 0:
            return False
        if gap * record.FIXED_V1 > self.lost_bytes:
            return False
        queue.fill_lost(queue_offset, physical_offset)
        return True

    def _begins_again(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Prepare a queue for a whole record that contradicts the list of deleted topics.

        Return False if it does not. The list may lack a deletion, because it is an older copy. It
        may also have a deletion that failed: its file was replaced, and the sync failed.
        """
        topic = queue.topic.name
        if queue.next_offset == 0:
            if topic not in self.deleted_topics and topic not in self._found_deletions:
                return False
            self.dispatch.restart(queue, queue_offset)
            return True
        if queue_offset > 0:
            return False
        queues = self.dispatch.queues
        below = self._found_deletions[topic] = queues.last_place(queue) + 1
        for other in queues.of_topic(topic):
            if other.next_offset and queues.last_place(other) < below:
                self.dispatch.restart(other, 0)
        self.on_deletion(topic, below)
        return True


def _arrival(queue: ConsumeQueue) -> Arrival:
    """Return an arrival for the units of a queue that become visible now."""
    units = queue.tail[(queue.visible - queue.written) * UNIT.size :]
    return Arrival(queue.topic.name, queue.queue_id, queue.visible, queue.next_offset, units)
