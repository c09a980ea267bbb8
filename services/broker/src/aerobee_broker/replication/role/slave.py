"""Run a slave: find its master, follow it, maintain its store, and serve reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from aerobee_broker.cluster.registration import unreachable
from aerobee_broker.errors import NotServed, ReplicaRefused
from aerobee_broker.replication.log.receiver import ReplicationReceiver
from aerobee_broker.replication.log.snapshot import Snapshot
from aerobee_broker.replication.role.preparation import Preparation, ReopenStore
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_broker.replication.role.slave_reads import SlaveReads
from aerobee_broker.replication.rpc.stream import MasterCall, fetch_snapshot
from aerobee_broker.store.messages import Arrival
from aerobee_chassis.background import PeriodicTask
from aerobee_chassis.lifecycle import Lifecycle
from aerobee_chassis.rpc.caller import Caller
from aerobee_wire.rpcs import FOLLOW
from aerobee_wire.status import Code, MqError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0  # seconds between two streams
# Seconds after a refusal or a full disk: the operator must change something first.
REFUSED_PAUSE_S = 10.0
STORE_UPKEEP_S = 1.0
LEASES_S = 1.0
SNAPSHOT_S = 30.0  # seconds between two saves of leases and of lite topics

FindMaster = Callable[[], Awaitable[str]]


class SlaveRole:
    """Follow the master and serve reads.

    - `find_master` returns the "host:port" of the master, or "" while it is unknown.
    - `on_change` is called within a second after the epoch or the topics have changed.
    - `refusal` is the reason why the master refuses this slave, or "" if it accepts the slave.
    - `trouble` is the reason why the last stream ended or did not start, or "".
    """

    def __init__(
        self,
        own: ReplicaStore,
        broker_id: int,
        find_master: FindMaster,
        on_change: Callable[[], None],
        on_broken: Callable[[], None],
    ) -> None:
        """Create the role. `broker_id` is the id that is registered at name servers."""
        self.refusal = ""
        self.master_address = ""  # the last one found
        self.is_following = False
        self.trouble = ""
        # True while the disk is full. Then the slave pauses longer, because it would join the set
        # and leave it again with the next chunk.
        self._is_full = False
        self._own = own
        self._find_master = find_master
        self._on_change = on_change
        self._on_broken = on_broken
        self._reported = self._registered()
        error_of = unreachable(Code.BROKER_UNREACHABLE, "the master")
        options = own.environment.options
        self._caller = Caller(error_of, options.peer_tls(options.broker_name))
        self._preparation = Preparation(own, self._fetch)
        self.reads = SlaveReads(
            own,
            broker_id,
            is_readable=lambda: self._is_readable,
            is_following=lambda: self.is_following,
            refuse=self.not_served,
        )
        self._receiver = ReplicationReceiver(
            own.store,
            own.hello,
            own.epochs,
            self._preparation,
            timing=own.timing,
            flusher=own.environment.flusher,
            clock=own.environment.clock.real,
            on_arrivals=self._on_arrivals,
            on_current=own.note_current,
        )

    @property
    def _is_readable(self) -> bool:
        """Return whether clients may read from this replica.

        They may if its data agrees with its master's, as far as it has caught up.
        """
        return not (self.refusal or self._preparation.is_under_way or self._own.is_unfinished)

    def not_served(self) -> NotServed:
        """Return the error for a call that only the master serves."""
        role = "a replica that its master refuses" if self.refusal else "a slave"
        return NotServed(role, self.master_address)

    def _on_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        self._own.replay.arrived(arrivals)
        self.reads.arrived(arrivals)

    @property
    def master_end(self) -> int:
        """Return the end of the master's log as last reported, or 0 if it was not reported."""
        return self._receiver.end_of_master

    async def run(self) -> None:
        """Follow a master until the call is cancelled.

        Raises ReopenStore if the store must be reopened. Raises OSError and StoreReadOnly if the
        disk fails.
        """
        own = self._own
        # A learner applies its own retention: it may have more of the log than its master.
        mirrors = not own.environment.options.is_learner
        own.keep_log_from(self._lowest_of_master, self._lowest_of_master if mirrors else lambda: 0)
        lifecycle = Lifecycle()
        try:
            save_s = own.environment.options.flush_consumer_offset_interval / 1_000
            await lifecycle.start(
                PeriodicTask("store", STORE_UPKEEP_S, self._keep_store),
                PeriodicTask("tables", save_s, self._save_tables),
                PeriodicTask("leases", LEASES_S, own.leases.catch_up),
                PeriodicTask("lease snapshot", SNAPSHOT_S, own.leases.try_save),
                PeriodicTask("lite topics", LEASES_S, own.lite.catch_up),
                PeriodicTask("snapshot of lite topics", SNAPSHOT_S, own.lite.save),
            )
            await self._follow_always()
        finally:
            await lifecycle.stop()
            own.counts.received(self._receiver.take_received())
            await self._caller.close()
            await own.saved.save()
            await own.leases.stop()
            await own.lite.stop()
            # Wait for the work that a cancelled step left on the flusher's thread.
            await own.environment.flusher(lambda: None)

    def _lowest_of_master(self) -> int:
        """Return the physical offset where the master's log begins, or 0 if it is unknown."""
        return self._receiver.lowest_of_master

    def _registered(self) -> tuple[int, int]:
        """Return the data of a slave at name servers: its epoch and its topics' revision."""
        return self._own.highest_epoch(), self._own.tables.topics.revision

    async def _save_tables(self) -> None:
        """Save the tables with the journal position up to which they are applied.

        Files of the journal before that position can be deleted. Without the regular save, they
        would stay forever if the journal gets no records.
        """
        try:
            self._own.replay.apply()
        except MqError as error:  # the disk is full, or fails
            structlog.get_logger().error("journal_not_applied", reason=error.message)
            return
        await self._own.table_upkeep.save()

    async def _keep_store(self) -> None:
        environment = self._own.environment
        self._own.counts.received(self._receiver.take_received())
        if (state := self._registered()) != self._reported:
            self._reported = state
            self._on_change()
        passed = partial(self._own.unfinished.passed, self._lowest_of_master())
        if self._own.unfinished.since:
            await environment.writer(passed)
        async with self._own.in_use:
            store = self._own.store
            now_ms = environment.clock.now_ms()
            self._own.topic_retention.refresh(now_ms)
            store.maintain(now_ms)
            while await environment.flusher(store.maintain_files):
                pass

    async def _fetch(self, epoch: int, log_begin: int) -> Snapshot:
        silence_s = self._own.timing.silence_ms / 1000
        address = self.master_address
        return await fetch_snapshot(self._caller, address, epoch, log_begin, silence_s)

    async def _follow_always(self) -> None:
        pause_s, logged = FIRST_PAUSE_S, ""
        while True:
            self.master_address = await self._find_master()
            reason = "no master is known"
            if self.master_address:
                began_ms = self._own.environment.clock.monotonic_ms()
                self._is_full = bool(reason := self._own.store.cleaning.retention.stop)
                reason = reason or await self._follow(self.master_address)
                self._on_broken()
                lasted_ms = self._own.environment.clock.monotonic_ms() - began_ms
                if lasted_ms > LONGEST_PAUSE_S * 1000:
                    pause_s, logged = FIRST_PAUSE_S, ""
            if reason != logged:
                log = structlog.get_logger()
                (log.error if self.refusal else log.warning)(
                    "not_following", master=self.master_address, reason=reason
                )
                logged = reason
            self.trouble = reason
            waits_longer = self.refusal or self._is_full
            await asyncio.sleep(REFUSED_PAUSE_S if waits_longer else pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _follow(self, address: str) -> str:
        """Follow the master at `address`, and return why the stream has ended."""
        try:
            async with self._caller.exchange(address, FOLLOW) as conversation:
                link = MasterCall(conversation)
                hello = await self._receiver.hello()
                await link.open(hello)
                self.refusal = ""
                self.is_following = True
                await self._receiver.follow(link, hello)
            reason = "the master has ended the stream"
        except ReopenStore:
            raise
        except MqError as error:
            if self._own.store.flush.read_only_reason:
                raise
            self._is_full = error.code is Code.DISK_FULL
            if error.code is Code.SERVICE_NOT_AVAILABLE and error.about == "brokerId":
                await self._own.note_displaced()
            if isinstance(error, ReplicaRefused) or error.code is Code.ILLEGAL_OPERATION:
                self.refusal = error.message
            reason = error.message
        finally:
            self.is_following = False
        await self._caller.drop(address)  # the next stream opens a new connection
        return reason
