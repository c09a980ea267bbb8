"""Prepare the store of a slave before it follows a master.

The preparation cuts the log where it differs from the master's log, or begins an empty log where
the master's log begins. Then it installs the tables of the master.

    write unfinished.json → cut or wipe → fetch the snapshot → begin the log, save the tables
    → write unfinished.json

A master deletes a topic before the log contains the deletion. If the log never gets the deletion
and another replica becomes master, the topic still exists. Then its queues are rebuilt from the
log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from aerobee_broker.delivery.metadata_journal import unlogged_deletions
from aerobee_broker.metadata.topics import Topics
from aerobee_broker.replication.log import snapshot
from aerobee_broker.replication.log.handshake import Action, Agreement
from aerobee_broker.replication.log.snapshot import Snapshot
from aerobee_broker.replication.log.stream import Welcome
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_broker.replication.role.unfinished import Unfinished
from aerobee_wire.queues.lite import LITE
from aerobee_wire.status import Code, MqError

# Fetch the snapshot of a master. Arguments: the epoch, and the physical offset of the log's begin.
Fetch = Callable[[int, int], Awaitable[Snapshot]]


class ReopenStore(MqError):
    """The store must be reopened, and a new stream started."""

    def __init__(self, reason: str) -> None:
        super().__init__(Code.SYSTEM_ERROR, f"the store opens again: {reason}", retryable=True)


class Preparation:
    """Prepare the store for a master, as agreed in the handshake.

    While `is_under_way` is True, the store is being changed or must be reopened. It must not be
    read.
    """

    def __init__(self, own: ReplicaStore, fetch: Fetch) -> None:
        self.is_under_way = False
        self._own = own
        self._fetch = fetch

    @property
    def is_due(self) -> bool:
        return self._own.is_unfinished or bool(unlogged_deletions(self._own.store))

    def require(self, features: frozenset[str]) -> None:
        """Record the features in the store's format. Raises DiskFull, StoreWriteError."""
        self._own.environment.format.require(features)

    async def prepare(self, agreement: Agreement, welcome: Welcome) -> None:
        """Prepare the store to follow the master that sent `welcome`.

        Raises ReopenStore, CutRefused, StreamBroken, OSError, and the errors of the call.
        """
        self.is_under_way = True
        try:
            await self._prepare(agreement, welcome)
        except ReopenStore:
            raise
        except BaseException:
            self.is_under_way = False
            raise
        self.is_under_way = False

    async def _prepare(self, agreement: Agreement, welcome: Welcome) -> None:
        own = self._own
        async with own.in_use:
            if agreement.action is Action.FOLLOW and not own.is_unfinished:
                await self._undo_deletions()
                return  # the tables are complete already
            before = own.unfinished.current
            known = before if own.is_unfinished else None
            copies = agreement.starts_anew or (
                agreement.action is Action.FOLLOW and known is not None and known.copies
            )
            since = own.unfinished.since
            if agreement.action is Action.COPY:
                since = agreement.begin if agreement.begin > welcome.master.lowest else 0
            # A replica with an empty log may be in the in-sync set. A mark would prevent its
            # election.
            if agreement.action is not Action.COPY or known is not None or before is None:
                await self._mark(Unfinished(copies=copies, since=since))
            if agreement.action in (Action.CUT, Action.WIPE):
                await own.raise_generation(0)  # after this, the log may be shorter
                await self._cut(agreement)
            if agreement.action is Action.WIPE:
                await self._mark(Unfinished(copies=copies, wipes=True))
                raise ReopenStore("what it has ends before its master's log begins")
            if not copies:
                await self._undo_deletions()
            begin_at = agreement.begin if agreement.action is Action.COPY else 0
            found = await self._fetch(welcome.master.epoch, begin_at)
            own.lite.lines.open(self._parents(found))
            if agreement.action is Action.COPY:
                store = own.store
                begin = partial(
                    store.follower.begin_at, agreement.begin, found.fronts, found.deleted_topics
                )
                await own.environment.flusher(begin)
            elif copies:
                await own.environment.flusher(
                    partial(own.store.take_deletions, found.deleted_topics)
                )
            await self._install(found)
            await self._mark(Unfinished(copies=copies, until=found.position, since=since))

    def _parents(self, found: Snapshot) -> list[str]:
        """Return the topics of type LITE in a snapshot. Raises StreamBroken."""
        topics = Topics(self._own.environment.clock)
        topics.load(found.content(snapshot.TABLES["topics"]))
        return [each.topic for each in topics.all() if each.message_type == LITE]

    async def _undo_deletions(self) -> None:
        """Undo topic deletions that are missing in the log.

        Raises ReopenStore if there were any, OSError, StoreReadError.
        """
        topics = unlogged_deletions(self._own.store)
        if topics:
            await self._own.environment.flusher(partial(self._own.store.undo_deletions, topics))
            raise ReopenStore("a topic was deleted that its master has")

    async def _mark(self, unfinished: Unfinished) -> None:
        await self._own.environment.writer(partial(self._own.unfinished.write, unfinished))

    async def _cut(self, agreement: Agreement) -> None:
        own = self._own
        store, epoch = own.store, own.epochs.history.newest_epoch
        flusher = own.environment.flusher
        cut = await flusher(partial(store.cut, agreement.agreed, epoch))
        messages = 0
        if cut.path is not None:
            messages = await flusher(partial(own.diverged.count_messages, cut.path.name))
            own.counts.cut(cut.end - cut.begin, messages)
        structlog.get_logger().warning(
            "log_cut",
            epoch=epoch,
            begin=cut.begin,
            end=cut.end,
            messages=messages,
            kept=str(cut.path),
            confirmed=cut.confirmed,
        )
        if cut.confirmed:
            raise ReopenStore(f"confirmed messages behind physical offset {cut.begin} were cut")

    async def _install(self, found: Snapshot) -> None:
        """Install the tables of the snapshot durably. Raises MqError, OSError."""
        own = self._own
        contents = {name: found.content(name) for name in snapshot.FILES}
        # No await between these calls, so that no other save writes half of the tables.
        for name, file in own.saved.files.items():
            file.take(contents[snapshot.TABLES[name]])
        delay_offsets = own.tables.saved_delay_offsets
        delay_offsets.take(contents[snapshot.DELAY_OFFSETS])
        own.leases.take(contents[snapshot.LEASES])
        own.replay.take_over(found.position)
        for file in (*own.saved.files.values(), delay_offsets):
            await file.save()
        await own.leases.save()
        structlog.get_logger().info("snapshot_taken", position=found.position)
