"""Keep the state of lite topics ready on a slave.

The state is where the messages of each lite topic lie, the positions of groups in them, and the
leases. So a new master reads only the end of the lease journal, and does not read the queues again.

Queues are followed only as far as the journal is known: an expiration in it changes how the
messages after it are chained. A copy needs nothing from its master. A record of the journal lies
after the messages that it concerns, so every log that has those messages also has the record.
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

MAX_UNITS = 4_096  # units applied at once for one queue: about 40 ms


class WarmLite:
    """Follow lite topics. `lines` holds the parent topics with their folders.

    All state in here is confirmed.
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
        """Apply everything that is visible, in slices. Raises StoreReadError.

        It works in slices, because a blocked event loop renews no lease.
        """
        more = self._step()
        while more:
            await asyncio.sleep(0)
            more = self._step()

    def _step(self) -> bool:
        """Apply one slice, and return whether there is more."""
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
        """Save what has changed enough; `everything`: all changes. A failure is logged."""
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
        """Save what is visible. A failure is logged."""
        try:
            await self.catch_up()
        except MqError as error:
            structlog.get_logger().error("lite_topics_not_followed", reason=error.message)
        await self.save(everything=True)
