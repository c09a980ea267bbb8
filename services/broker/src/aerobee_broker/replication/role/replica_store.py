"""Keep the parts of a replica that outlive a role: store, tables, identity and epochs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import structlog

from aerobee_broker.delivery.metadata_replay import MetadataReplay
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.standby import WarmLeases
from aerobee_broker.delivery.topic_retention import TopicRetention
from aerobee_broker.errors import ReplicaRefused
from aerobee_broker.metadata.table_journal import SavedTables, TableUpkeep
from aerobee_broker.replication.identity import IdentityFile, Replica
from aerobee_broker.replication.in_sync.counts import ReplicaCounts
from aerobee_broker.replication.log.diverged import DivergedFiles
from aerobee_broker.replication.log.epochs import EpochFile, Reach
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.log.status import DamageStatus
from aerobee_broker.replication.log.stream import Hello, StreamTiming
from aerobee_broker.replication.role.enrollment import EnrollmentFile
from aerobee_broker.replication.role.unfinished import UnfinishedFile
from aerobee_broker.replication.role.warm_lite import WarmLite
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.wiring.environment import Environment
from aerobee_broker.wiring.store import open_store
from aerobee_broker.wiring.tables import Tables
from aerobee_wire import topics as names
from aerobee_wire.status import MqError


class ReplicaStore:
    """Own the store of a replica and the files beside it. Call `open` first.

    The store does not accept appends until a master enables them.

    `in_use` is a lock for work that takes long or that replaces files of the store. `trouble` is
    the reason why the store did not reopen, or "". `is_displaced` is True if the store may lack
    what was confirmed with its id: the master serves another process with its number, or the disk
    is an older copy. It is durable, and ends when the replica has caught up with a master.
    """

    def __init__(self, environment: Environment, store_host: str, process_id: str = "") -> None:
        """Create it without opening the store.

        `store_host` is the "ip:port" in message ids. `process_id` identifies this process to the
        master.
        """
        config, disk = environment.path / "config", environment.disk
        self.environment = environment
        self.in_use = asyncio.Lock()
        self.trouble = ""
        self.tables = Tables(environment, replicated=True)
        self.epochs = EpochFile(disk, config / "epochs.json")
        self.diverged = DivergedFiles(disk, environment.path / "diverged")
        self.counts = ReplicaCounts()
        self.replica = Replica(environment.options.broker_id, "")
        self.unfinished = UnfinishedFile(disk, config / "unfinished.json")
        self._identity = IdentityFile(disk, config / "brokerIdentity.json", environment.rng)
        self._store_host = store_host
        self._process_id = process_id
        self.is_displaced = False
        self._store: MessageStore | None = None
        self._replay: MetadataReplay | None = None
        self._table_upkeep: TableUpkeep | None = None
        self._leases: WarmLeases | None = None
        self._lite: WarmLite | None = None
        self._topic_retention: TopicRetention | None = None
        self.enrollment = EnrollmentFile(disk, config / "enrollment.json")
        self._current_epoch = 0
        self._needed_from: Callable[[], int | None] = lambda: 0
        self._given_up_below: Callable[[], int] = lambda: 0

    @property
    def is_open(self) -> bool:
        return self._store is not None

    @property
    def store(self) -> MessageStore:
        assert self._store is not None, "it is opened first, and not used while it is closed"
        return self._store

    @property
    def replay(self) -> MetadataReplay:
        """Return the object that applies the metadata journal to the tables."""
        assert self._replay is not None, "it is opened first"
        return self._replay

    def _warm_leases(self, store: MessageStore) -> WarmLeases:
        environment = self.environment
        topic = names.pop_journal_topic(environment.options.broker_cluster_name)
        table = LeaseTable(environment.clock, lambda: self.leases.position)
        snapshot = self.tables.file_of(table, "popLeases.json")
        return WarmLeases(store, table, snapshot, topic)

    @property
    def leases(self) -> WarmLeases:
        """Return the leases that a slave keeps. A master loads its own from their file."""
        assert self._leases is not None, "it is opened first"
        return self._leases

    @property
    def lite(self) -> WarmLite:
        """Return the lite topics that a slave keeps. A master loads its own from their files."""
        assert self._lite is not None, "it is opened first"
        return self._lite

    @property
    def topic_retention(self) -> TopicRetention:
        """Return the object that gives the store the retention times of topics."""
        assert self._topic_retention is not None, "it is opened first"
        return self._topic_retention

    @property
    def table_upkeep(self) -> TableUpkeep:
        assert self._table_upkeep is not None, "it is opened first"
        return self._table_upkeep

    @property
    def saved(self) -> SavedTables:
        """Return the tables whose changes are written to the metadata journal."""
        assert self.tables.journalled is not None
        return self.tables.journalled

    async def open(self) -> None:
        """Open the store and load the tables.

        Raises OSError and MqError, for example StoreOpenError and ConfigFileDamaged.
        """
        await self.environment.flusher(self._open)

    def _open(self) -> None:
        environment = self.environment
        environment.format.load()  # before anything is wiped
        self.unfinished.load()
        unfinished = self.unfinished.current
        if unfinished is not None and unfinished.wipes:
            self._wipe()
            self.unfinished.write(replace(unfinished, wipes=False))
        store = open_store(environment, self._store_host)
        try:
            store.flush.close_to_appends("this broker is not the master")
            store.cleaning.protect(self._log_needed_from)
            store.cleaning.give_up(self._log_given_up_below)
            self.replica = Replica(environment.options.broker_id, self._identity.load())
            self.epochs.load()
            self.enrollment.load()
            if not environment.options.is_elected:  # etcd has a record of the epoch
                self._compare_epochs()
            self.is_displaced |= self.enrollment.is_doubtful
            self.tables = Tables(environment, replicated=True)
            self.tables.restore()
            lite = WarmLite(environment, store, self.tables)
            self._replay = MetadataReplay(store, self.saved, lite.lines)
            self._replay.restore()
            lite.load(self._replay.parents())
            self._lite = lite
            self._leases = self._warm_leases(store)
            retention = TopicRetention(store, self.tables.topics, self.tables.offsets)
            retention.restore(environment.clock.now_ms())
            self._topic_retention = retention
            self._table_upkeep = TableUpkeep(store, self.saved, environment.clock.real)
        except BaseException:
            store.abandon()
            raise
        self._store = store

    def _wipe(self) -> None:
        disk, path = self.environment.disk, self.environment.path
        for name in ("commitlog", "consumequeue", "index", "lite"):
            disk.remove_tree(path / name)
        config = path / "config"
        tables = [config / name for name in ("liteLeases.json", "deletedTopics.json")]
        # A backup is loaded if its file is missing.
        backups = [table.with_name(f"{table.name}.bak") for table in tables]
        for file in (path / "checkpoint", path / "liteOffsets", *backups, *tables):
            if disk.exists(file):
                disk.remove(file)
                disk.sync_directory(file.parent)
        disk.sync_directory(path)

    # ---- the disk, compared with the coordinator's record ----

    @property
    def current_epoch(self) -> int:
        """Return the last epoch in which this process had all confirmed data, or 0.

        A process that has just started returns 0, because its disk may be an older copy.
        """
        return self._current_epoch

    def note_current(self, epoch: int) -> None:
        self._current_epoch = max(self._current_epoch, epoch)
        self.is_displaced = False

    def _compare_epochs(self) -> None:
        """Doubt the store if it knew a higher epoch than its `epochs.json` has. Raises OSError."""
        known, found = self.enrollment.epoch, self.epochs.history.highest
        if found >= known:
            return
        self.enrollment.doubt()
        self.epochs.change(lambda history: history.note(known))
        structlog.get_logger().error(
            "store_went_back",
            replica=str(self.replica),
            epoch=found,
            known_epoch=known,
            advice="epochs.json is an older copy: the replica does not count in a promotion until "
            "it has caught up with a master",
        )

    async def note_displaced(self) -> None:
        """Record durably that this store may lack what was confirmed with its id.

        It is complete again when it has caught up with a master. Log a failure of the disk.
        """
        self.is_displaced = True
        if self.enrollment.is_doubtful:
            return
        try:
            await self.environment.writer(self.enrollment.doubt)
        except OSError as error:  # this process knows, and the next one may not
            structlog.get_logger().error("displacement_not_noted", reason=str(error))

    async def note_complete(self, known: int) -> None:
        """Make it durable that this store has caught up. Raises OSError.

        `known` is the highest generation of a copy of this store. Other copies have a lower
        generation from now on.
        """
        generation = max(self.enrollment.generation, known) + 1
        await self.environment.writer(partial(self.enrollment.trust, generation))

    @property
    def reach(self) -> Reach:
        """Return how far the log on the disk goes."""
        return self.epochs.history.reach(self.store.flushed_offset)

    @property
    def recorded_reach(self) -> Reach:
        """Return the highest known epoch and the end of the log on the disk.

        The coordinator records it. It falls only if the disk goes back: a cut lowers the end, and
        the slave then knows the higher epoch of its master.
        """
        return Reach(self.highest_epoch(), self.store.flushed_offset)

    @property
    def is_whole(self) -> bool:
        """Return whether the log is undamaged and complete.

        The log or its tables are incomplete while this replica copies a part from a master.
        """
        return not (self.damaged or self.is_unfinished or self.unfinished.since)

    async def renew_identity(self) -> None:
        """Give this store a new id, durably, so that it is a new replica. Raises OSError.

        The new replica is in no in-sync set.
        """
        store_id = await self.environment.writer(self._identity.renew)
        self.replica = Replica(self.replica.replica_id, store_id)

    async def raise_generation(self, known: int) -> int:
        """Return the generation of this start: above the store's last one, and above `known`.

        The generation is durable on return. Raises OSError.
        """
        generation = max(self.enrollment.generation, known) + 1
        start = partial(self.enrollment.start, generation, self.highest_epoch())
        await self.environment.writer(start)
        return generation

    async def note_seen(self, version: int) -> None:
        """Record that the coordinator has a state of this version. Raises OSError."""
        if version > self.enrollment.seen:
            await self.environment.writer(partial(self.enrollment.see, version))

    @property
    def is_unfinished(self) -> bool:
        """Return whether this replica lacks its master's tables, or the log that they need."""
        return self.unfinished.is_due(self.store.end_offset)

    @property
    def has_its_log(self) -> bool:
        """Return whether the replica has all the log that it ever confirmed.

        A cut removes no confirmed data of the group, but a copy begins with an empty log.
        """
        if self.is_displaced:
            return False
        current = self.unfinished.current
        return current is None or not (current.copies and self.is_unfinished)

    @property
    def damaged(self) -> bool:
        """Return whether the durable log has a known damaged record that is not repaired yet."""
        return self.is_open and bool(self.store.damage.ranges)

    @property
    def damage_status(self) -> DamageStatus:
        damage = self.store.damage
        return DamageStatus(
            len(damage.ranges),
            damage.damaged_bytes,
            self.store.repair.records,
            self.environment.metrics.scrubbed_ms,
        )

    def check_finished(self) -> None:
        """Check that log and tables are complete enough for a master. Raises ReplicaRefused."""
        if self.unfinished.is_due(self.store.end_offset):
            raise ReplicaRefused(
                f"replica {self.replica} has not taken the tables of its master since it cut or "
                "copied its log: let it follow until it is in the in-sync set, or promote another",
                about="brokerRole",
            )
        if self.unfinished.since:
            raise ReplicaRefused(
                f"replica {self.replica} has the log from physical offset {self.unfinished.since} "
                "on, and its master has more (syncFromLastFile): it only reads until the master "
                "has deleted what lies before; promote another",
                about="syncFromLastFile",
            )

    async def close(self) -> None:
        """Close the store. Log a failure; the next start then recovers as after a crash."""
        store, self._store = self._store, None
        if store is None:
            return
        try:
            # It runs after the work that is still queued on that thread.
            await self.environment.flusher(store.close)
        except MqError as error:
            structlog.get_logger().error("store_not_closed", reason=error.message)

    async def reopen(self) -> None:
        """Reopen the store from disk, for another role. Raises the same errors as `open`.

        A cancelled call ends only when the store is open or has failed to open. The thread cannot
        be interrupted, and the next role needs the store.
        """
        reopening = asyncio.ensure_future(self._reopen())
        try:
            await asyncio.shield(reopening)
        finally:
            if not reopening.done():
                await asyncio.wait([reopening])
                reopening.exception()  # `trouble` has it

    async def _reopen(self) -> None:
        try:
            await self.close()
            await self.open()
        except (MqError, OSError) as error:
            self.trouble = str(error)
            raise
        self.trouble = ""

    def keep_log_from(
        self,
        needed_from: Callable[[], int | None],
        given_up_below: Callable[[], int] = lambda: 0,
    ) -> None:
        """Set limits for the deletion of log files that override retention.

        Log files that reach beyond the offset of `needed_from` are kept. Log files that end at or
        below the offset of `given_up_below` are deleted.
        """
        self._needed_from, self._given_up_below = needed_from, given_up_below

    def _log_needed_from(self) -> int | None:
        return self._needed_from()

    def _log_given_up_below(self) -> int:
        return self._given_up_below()

    async def flush_rest(self) -> None:
        """Flush the received part of the log, if it is not flushed yet. Raises as a flush does."""
        flusher, flush = self.environment.flusher, self.store.flush
        if self.store.end_offset == self.store.flushed_offset:
            return
        flush.seal()
        try:
            await flusher(flush.write_and_sync)
        except MqError:
            flush.roll_back()
            raise

    # ---- descriptions for other replicas ----

    def describe(self) -> LogDescription:
        store, history, options = self.store, self.epochs.history, self.environment.options
        return LogDescription(
            cluster=options.broker_cluster_name,
            broker_name=options.broker_name,
            replica=self.replica,
            history=history,
            epoch=history.highest,
            lowest=store.min_physical_offset,
            end=store.written_offset,
            confirmed=store.confirmed_offset,
            file_size=options.mapped_file_size_commit_log,
            settings={
                "enabledAppendPropCRC": str(options.enabled_append_prop_crc).lower(),
                "messageDelayLevel": " ".join(options.message_delay_level.split()),
            },
            build=self.environment.format.build,
            required=self.environment.format.required,
        )

    def highest_epoch(self) -> int:
        return self.epochs.history.highest

    def hello(self) -> Hello:
        options = self.environment.options
        described = replace(self.describe(), from_last_file=options.sync_from_last_file)
        return Hello(described, options.is_learner, self._process_id)

    @property
    def timing(self) -> StreamTiming:
        options = self.environment.options
        return StreamTiming(
            batch_bytes=options.ha_transfer_batch_size,
            heartbeat_ms=options.ha_send_heartbeat_interval,
            silence_ms=options.ha_housekeeping_interval,
        )
