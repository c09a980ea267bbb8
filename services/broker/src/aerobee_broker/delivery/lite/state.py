"""Restores the state of lite topics at startup, saves it regularly, and deletes it on request.

The lease journal of lite topics contains all leases and positions. The files `liteLeases.json`
(leases) and `liteOffsets` (positions) are saved so that a start reads only the end of the journal.
Journal records that are missing in one of the two files are kept in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.delivery.lite.line_leases import LineLeases
from aerobee_broker.delivery.lite.lines import LiteLines
from aerobee_broker.delivery.lite.positions import LitePositions, PositionsFile
from aerobee_broker.delivery.lite.syncing import Syncing
from aerobee_broker.delivery.pop.lease_journal_format import QUEUE_ID, DeleteRecord
from aerobee_broker.delivery.pop.lease_space import LeaseSpace
from aerobee_broker.errors import StoreReadError, StoreWriteError
from aerobee_broker.metadata.topics import Topics
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.lifecycle import Component
from aerobee_wire.queues.lite import LITE
from aerobee_wire.status import MqError

_AT_LEAST_EVERY = 20  # calls of `save` (every 30 s) after which any change of positions is saved


@dataclass(slots=True, kw_only=True, eq=False)
class LiteState(Component):
    """Restores, saves and deletes the leases, positions and files of lite topics.

    At startup, `add_parent` is called with each topic of type LITE.
    """

    store: MessageStore
    lines: LiteLines
    positions: LitePositions
    file: PositionsFile
    table: LineLeases
    leases: LeaseSpace
    syncing: Syncing
    topics: Topics
    writer: Worker
    add_parent: Callable[[str], None]
    _rounds: int = field(default=0, init=False)  # calls of `save` since positions were saved
    _saved_position: int = field(default=0, init=False)  # queue offset in the journal

    @property
    def in_use(self) -> bool:
        """Return whether a topic of type LITE exists."""
        return bool(self.lines.parents)

    # ---- startup and shutdown ----

    def restore_slices(self) -> Iterator[None]:
        """Restore the lite topics, positions and leases, yielding between slices of the work.

        Raises ConfigFileDamaged, OSError, StoreReadError.
        """
        parents = [each.topic for each in self.topics.all() if each.message_type == LITE]
        self.lines.open(parents)
        for parent in parents:
            self.add_parent(parent)
        self.leases.journal.restore()
        if not self.file.load(self.positions):
            self.positions.loaded_position = 0
        self.positions.end_at(self.store.max_offset, self._journal_end())
        self._saved_position = self.positions.loaded_position
        known = min(self.table.loaded_position, self.positions.loaded_position)
        self.table.loaded_position = known
        if parents or known:
            yield from self.leases.restore_slices()
            self._forget_recreated(parents)
            self.lines.open_queues()
            for parent in parents:
                for queue_id, queue in self.lines.lite_queues(parent):
                    self.positions.keep_only(parent, queue_id, set(queue.codes()))
            self.table.drop_idle(at_once=True)

    def _forget_recreated(self, parents: Collection[str]) -> None:
        """Remove the positions and expirations in parent topics without messages.

        They may remain if the broker is killed right after a parent's deletion. They would hide
        messages of a recreated parent, because its queue offsets start at 0 again.
        """
        for parent in self.positions.parents():
            queues = self.store.queues(parent) if parent in parents else ()
            if not any(self.store.max_offset(parent, queue_id) for queue_id in queues):
                self.table.forget(topic=parent)
                self.leases.journal.write_until_durable([DeleteRecord("", parent)])

    async def start(self) -> None:
        store = self.leases.journal.log.store
        # If records were not confirmed, saving would wait for replicas, which connect only after
        # this broker has started.
        if self.in_use and store.end_offset == store.confirmed_offset:
            await self.save(everything=True)

    async def stop(self) -> None:
        if self.in_use:
            await self.save(everything=True)

    # ---- maintenance ----

    def maintain(self) -> None:
        """Write and trim the files of lite topics, and remove silent clients. Called every 10 s."""
        if self.in_use:
            self.lines.maintain()
            self.syncing.expire()

    async def save(self, *, everything: bool = False) -> None:
        """Save the leases, and the positions and lite topics if enough has changed.

        Called every 30 s. With `everything`, saves all changes. After a failure, logs an error. The
        next call retries.
        """
        if not self.in_use and not everything:
            return
        self.table.drop_idle()
        await self.leases.journal.save_snapshot()
        self._rounds += 1
        late = self._rounds >= _AT_LEAST_EVERY and self.positions.changes > 0
        if self.positions.is_due or late or (everything and self.positions.changes):
            await self._save_positions()
        await self._save_heads(everything=everything)

    async def _save_positions(self) -> None:
        # An acknowledgement is in the journal before its request commits the position.
        for queue in self.table.queues():
            self.positions.commit(*queue.key, queue.committed_offset)
        position = self._journal_end()
        write = self.file.writer(self.positions.to_bytes(position))
        try:
            # The file must not contain an acknowledgement that is rolled back or lost in a
            # failover.
            await self.leases.journal.log.visible()
            await self.writer(write)
        except (OSError, MqError) as error:
            self.positions.changes += len(self.positions)
            structlog.get_logger().error("lite_offsets_not_saved", reason=str(error))
        else:
            self._saved_position, self._rounds = position, 0

    async def _save_heads(self, *, everything: bool) -> None:
        try:
            captures = self.lines.captures(all_of_it=everything)
        except (OSError, StoreReadError) as error:
            structlog.get_logger().error("lite_topics_not_saved", reason=str(error))
            return
        for queue, capture in captures:
            try:
                await self.writer(capture.write)
            except OSError as error:
                queue.not_captured(capture)
                structlog.get_logger().error("lite_topics_not_saved", reason=str(error))

    def _journal_end(self) -> int:
        return self.store.max_offset(self.leases.journal.topic, QUEUE_ID)

    def needed_from(self) -> int | None:
        """Return the physical offset of the first journal record that the next start must read.

        Returns None if it does not need any record.
        """
        if not self.in_use:
            return None
        units = self.store.units(self.leases.journal.topic, QUEUE_ID, self._saved_position, 1)
        return units[0][0] if units else None

    # ---- deletions ----

    def check_forget(self, *, consumer_group: str = "", topic: str = "") -> None:
        """Check that `forget` with the same arguments can write to the journal.

        Raises DiskFull, StoreReadOnly.
        """
        if self.table.knows(consumer_group=consumer_group, topic=topic):
            self.leases.journal.check_open_to_appends()

    def forget(self, *, consumer_group: str = "", topic: str = "") -> asyncio.Future[None] | None:
        """Delete the state of a deleted group or parent topic.

        Returns the future of LeaseJournal.write_until_durable, or None if there was no lease and no
        position.
        """
        durable = None
        if consumer_group:
            for client in self.syncing.dispatch.subscriptions.forget_group(consumer_group):
                self.syncing.dispatch.ready.leave(consumer_group, client.client_id)
        if self.table.forget(consumer_group=consumer_group, topic=topic):
            durable = self.leases.journal.write_until_durable([DeleteRecord(consumer_group, topic)])
        if topic in self.lines.parents:
            try:
                self.lines.remove_parent(topic)
            except StoreWriteError as error:  # the next start removes it
                structlog.get_logger().warning("directory_left", topic=topic, reason=str(error))
        return durable
