"""Keep the state of lite topics ready on a slave.

The state contains where the messages of each lite topic are, the positions of groups in them, and
the leases. So a new master needs to read only the end of the lease journal, and need not read the
queues again.

The slave follows queues only as far as it has applied the journal. An expiration in the journal
changes how later messages of the lite topic are linked.

A slave that copies a log needs no file from its master for this. A journal record comes after the
messages that it concerns. So every log that has those messages also has the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from aerobee_broker.delivery.lite.line_leases import LineLeases
from aerobee_broker.delivery.lite.lines import LiteLines
from aerobee_broker.delivery.lite.positions import LitePositions, PositionsFile
from aerobee_broker.delivery.pop.lease_journal import SLICE_RECORDS, apply_records
from aerobee_broker.delivery.pop.lease_journal_format import QUEUE_ID
from aerobee_broker.errors import StoreReadError
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.wiring.environment import Environment
from aerobee_broker.wiring.tables import Tables
from aerobee_wire import topics as names
from aerobee_wire.status import MqError

MAX_UNITS = 4_096  # consume queue entries applied at once for one queue: about 40 ms


class WarmLite:
    """Keep the state of lite topics up to date. `lines` holds the parent topics.

    The state contains only confirmed data.
    """

    def __init__(self, environment: Environment, store: MessageStore, tables: Tables) -> None:
        folder, require = environment.path / "lite", environment.format.require
        self.lines = LiteLines(store, environment.disk, folder, require)
        self._environment = environment
        self._store = store
        self._topic = names.lite_journal_topic(environment.options.broker_cluster_name)
        self._position = 0  # queue offset in the journal
        clock = environment.clock
        self._positions = LitePositions(clock, self.lines.expirations)
        self._table = LineLeases(clock, lambda: self._position, self._positions)
        self._snapshot = tables.file_of(self._table, "liteLeases.json")
        self._file = PositionsFile(environment.disk, environment.path / "liteOffsets")

    def load(self, parents: Collection[str]) -> None:
        """Load the files for `parents`, the topics of type LITE.

        Raises ConfigFileDamaged, OSError.
        """
        self.lines.open(sorted(parents))
        self._snapshot.load()
        loaded = self._file.load(self._positions)
        position = min(self._table.loaded_position, self._positions.loaded_position)
        if loaded and position <= self._store.max_offset(self._topic, QUEUE_ID):
            self._position = position
            return
        # Apply the whole journal: the files may contain state of a part of the log that was cut.
        self._positions.clear()
        self._table.load({"position": 0, "lastLeaseId": 0, "groups": []})
        if loaded:
            self._environment.disk.remove(self._file.path)

    # ---- following ----

    async def catch_up(self) -> None:
        """Apply all visible records. Raises StoreReadError.

        The work is done in small steps, because a blocked event loop cannot renew the lease at
        etcd.
        """
        more = self._step()
        while more:
            await asyncio.sleep(0)
            more = self._step()

    def _step(self) -> bool:
        """Do one small step of `catch_up`, and return whether more is to do."""
        if not self.lines.parents and not self._position:
            return False
        if self._apply_records():
            return True
        try:
            return self.lines.catch_up(MAX_UNITS)
        except OSError as error:
            raise StoreReadError(error) from error

    def _apply_records(self) -> bool:
        begin = max(self._position, self._store.min_offset(self._topic, QUEUE_ID))
        count = 0
        for behind in apply_records(self._store, self._table, self._topic, begin):
            self._position = behind
            count += 1
            if count == SLICE_RECORDS:
                break
        if count:
            self._table.touch()
            for queue in self._table.queues():
                self._positions.commit(*queue.key, queue.committed_offset)
            self._table.drop_idle(at_once=True)
        return count == SLICE_RECORDS

    # ---- files ----

    async def save(self, *, everything: bool = False) -> None:
        """Save the parts that have changed enough, or all changes if `everything` is True.

        A failure is logged.
        """
        if not self.lines.parents and not self._position:
            return
        try:
            await self._save(everything=everything)
        except (OSError, MqError) as error:
            structlog.get_logger().error("lite_topics_not_saved", reason=str(error))

    async def _save(self, *, everything: bool) -> None:
        write = self._environment.writer
        await self._snapshot.save()
        if everything or self._positions.is_due:
            await write(self._file.writer(self._positions.to_bytes(self._position)))
        self.lines.maintain()
        for queue, capture in self.lines.captures(all_of_it=everything):
            try:
                await write(capture.write)
            except OSError:
                queue.not_captured(capture)
                raise

    async def stop(self) -> None:
        """Apply all visible records and save all changes. A failure is logged."""
        try:
            await self.catch_up()
        except MqError as error:
            structlog.get_logger().error("lite_topics_not_followed", reason=error.message)
        await self.save(everything=True)
