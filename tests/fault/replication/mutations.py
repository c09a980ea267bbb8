"""Mutations of replication: defects that its histories must notice. Each replaces one function by
one that is wrong in the way its name says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from aerobee_broker.commit.commit import Watermarks
from aerobee_broker.delivery import metadata_journal
from aerobee_broker.delivery.metadata_journal import MetadataJournal
from aerobee_broker.delivery.metadata_replay import MetadataReplay
from aerobee_broker.metadata.journal_records import TopicDeletion
from aerobee_broker.metadata.persistent_table import Logged
from aerobee_broker.metadata.table import Table
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.in_sync_set import InSyncSet, Members
from aerobee_broker.replication.log import handshake
from aerobee_broker.replication.log.epochs import EpochEntry, EpochHistory
from aerobee_broker.replication.log.handshake import Action, Agreement, LogDescription
from aerobee_broker.replication.log.receiver import MasterLink, ReplicationReceiver
from aerobee_broker.replication.log.sender import ReplicationSender
from aerobee_broker.replication.log.stream import Hello, Report, ReportCheck
from aerobee_broker.replication.role import preparation
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_broker.store.recovery.derive import Deriver
from aerobee_chassis.background import until_one_ends
from fault.replication import failover
from support.disk.simulated_disk import SimulatedDisk
from support.replication.group import SimulatedGroup
from support.replication.replica import CONFIG, SimulatedReplica

Mutation = Callable[[pytest.MonkeyPatch], None]


# ---- the in-sync set ----


def write_a_join_before_waiting(patch: pytest.MonkeyPatch) -> None:
    good = InSyncSet.next_change

    def next_change(self: InSyncSet, now_ms: int) -> Members | None:
        before = self._possible
        wanted = good(self, now_ms)
        self._possible = before
        return wanted

    patch.setattr(InSyncSet, "next_change", next_change)
    patch.setattr(InSyncSet, "waited_for", property(lambda self: self._possible))


def stop_waiting_before_a_leave_is_written(patch: pytest.MonkeyPatch) -> None:
    good = InSyncSet.next_change

    def next_change(self: InSyncSet, now_ms: int) -> Members | None:
        wanted = good(self, now_ms)
        if wanted is not None:
            self._possible = wanted
            self._advance()
        return wanted

    patch.setattr(InSyncSet, "next_change", next_change)


def take_a_lost_answer_for_done(patch: pytest.MonkeyPatch) -> None:
    good_begin, good_end = InSyncSet.next_change, InSyncSet.change_ended
    written: dict[InSyncSet, Members] = {}

    def next_change(self: InSyncSet, now_ms: int) -> Members | None:
        wanted = good_begin(self, now_ms)
        if wanted is not None:
            written[self] = wanted
        return wanted

    def change_ended(self: InSyncSet, members: Iterable[Replica] | None) -> None:
        good_end(self, written[self] if members is None else members)

    patch.setattr(InSyncSet, "next_change", next_change)
    patch.setattr(InSyncSet, "change_ended", change_ended)


def take_a_lost_answer_for_not_done(patch: pytest.MonkeyPatch) -> None:
    good_begin, good_end = InSyncSet.next_change, InSyncSet.change_ended
    before: dict[InSyncSet, Members] = {}

    def next_change(self: InSyncSet, now_ms: int) -> Members | None:
        members = self.members
        wanted = good_begin(self, now_ms)
        if wanted is not None:
            before[self] = members
        return wanted

    def change_ended(self: InSyncSet, members: Iterable[Replica] | None) -> None:
        good_end(self, before[self] if members is None else members)

    patch.setattr(InSyncSet, "next_change", next_change)
    patch.setattr(InSyncSet, "change_ended", change_ended)


def confirm_without_a_member_that_has_no_stream(patch: pytest.MonkeyPatch) -> None:
    good = InSyncSet._advance

    def advance(self: InSyncSet) -> None:
        ends = [
            self._followers[replica].synced
            for replica in self.waited_for - {self._me}
            if self._followers[replica].connected
        ]
        self.confirmed = max(self.confirmed, min([self._synced, *ends]))
        good(self)

    patch.setattr(InSyncSet, "_advance", advance)


def acknowledge_on_too_few_replicas(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSyncSet, "suffices", True)


def acknowledge_before_the_replicas_have_it(patch: pytest.MonkeyPatch) -> None:
    good = InSyncSet._advance

    def advance(self: InSyncSet) -> None:
        good(self)
        if self.suffices:
            self.acknowledged = max(self.acknowledged, self._synced)

    patch.setattr(InSyncSet, "_advance", advance)


def let_a_replica_join_that_lacks_confirmed_messages(patch: pytest.MonkeyPatch) -> None:
    good = InSyncSet.next_change

    def next_change(self: InSyncSet, now_ms: int) -> Members | None:
        confirmed, self.confirmed = self.confirmed, 0
        start, self._start = self._start, 0
        wanted = good(self, now_ms)
        self.confirmed, self._start = max(confirmed, self.confirmed), start
        return wanted

    patch.setattr(InSyncSet, "next_change", next_change)


IN_SYNC = (
    write_a_join_before_waiting,
    stop_waiting_before_a_leave_is_written,
    take_a_lost_answer_for_done,
    take_a_lost_answer_for_not_done,
    confirm_without_a_member_that_has_no_stream,
    acknowledge_on_too_few_replicas,
    acknowledge_before_the_replicas_have_it,
    let_a_replica_join_that_lacks_confirmed_messages,
)


# ---- the handshake ----


def compare_epochs_by_number_alone(patch: pytest.MonkeyPatch) -> None:
    def newest_common(self: EpochHistory, other: EpochHistory) -> EpochEntry | None:
        known = {entry.epoch for entry in other.entries}
        return next((entry for entry in reversed(self.entries) if entry.epoch in known), None)

    patch.setattr(EpochHistory, "newest_common", newest_common)


def forget_the_origin(patch: pytest.MonkeyPatch) -> None:
    good = EpochHistory.newest_common

    def newest_common(self: EpochHistory, other: EpochHistory) -> EpochEntry | None:
        entry = good(self, other)
        return None if entry is None or entry.epoch == 0 else entry

    patch.setattr(EpochHistory, "newest_common", newest_common)


def keep_the_tail_that_the_master_has_not(patch: pytest.MonkeyPatch) -> None:
    good = handshake.agree

    def agree(slave: LogDescription, master: LogDescription) -> Agreement:
        agreement = good(slave, master)
        if agreement.action is Action.CUT and slave.end <= master.end:
            return Agreement(Action.FOLLOW, slave.end, slave.end)
        return agreement

    _patch_agree(patch, agree)


def cut_at_the_masters_end_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    def end_of(self: EpochHistory, epoch: int, log_end: int) -> int:
        following = [entry.start for entry in self.entries if entry.epoch > epoch]
        return following[0] if following else max(log_end, self.entries[-1].start)

    patch.setattr(EpochHistory, "end_of", end_of)


def cut_a_stranger_to_nothing(patch: pytest.MonkeyPatch) -> None:
    good = EpochHistory.newest_common

    def newest_common(self: EpochHistory, other: EpochHistory) -> EpochEntry | None:
        return good(self, other) or (self.entries[0] if self.entries else None)

    patch.setattr(EpochHistory, "newest_common", newest_common)


def keep_an_empty_epoch(patch: pytest.MonkeyPatch) -> None:
    """A new master keeps the entries that begin where its log ends, or behind that."""
    patch.setattr(EpochHistory, "_before", lambda self, end: self.entries)
    patch.setattr(EpochHistory, "__post_init__", lambda self: None)  # which refuses such a history


def _patch_agree(
    patch: pytest.MonkeyPatch, agree: Callable[[LogDescription, LogDescription], Agreement]
) -> None:
    patch.setattr(handshake, "agree", agree)


HANDSHAKE = (
    compare_epochs_by_number_alone,
    forget_the_origin,
    keep_the_tail_that_the_master_has_not,
    cut_at_the_masters_end_of_the_epoch,
    cut_a_stranger_to_nothing,
    keep_an_empty_epoch,
)


# ---- master and slaves ----


def answer_before_the_replicas(patch: pytest.MonkeyPatch) -> None:
    good = ReplicationSender.watermarks

    def watermarks(self: ReplicationSender, own: int, flushed: int) -> Watermarks:
        return good(self, own, flushed)._replace(sent=own, settled=own)

    patch.setattr(ReplicationSender, "watermarks", watermarks)


def show_before_confirm(patch: pytest.MonkeyPatch) -> None:
    good = ReplicationSender.watermarks

    def watermarks(self: ReplicationSender, own: int, flushed: int) -> Watermarks:
        return good(self, own, flushed)._replace(visible=flushed)

    patch.setattr(ReplicationSender, "watermarks", watermarks)


def confirm_before_the_slaves_sync(patch: pytest.MonkeyPatch) -> None:
    async def report(self: ReplicationReceiver, link: MasterLink, epoch: int) -> None:
        end = self._store.end_offset
        await link.send(Report(epoch, end, end))

    good = ReplicationReceiver._flush_rest

    async def flush_rest(self: ReplicationReceiver) -> None:
        await asyncio.sleep(0.05)
        await good(self)

    good_flush = ReplicationReceiver._flush

    async def flush(self: ReplicationReceiver, link: MasterLink, epoch: int) -> None:
        async def report_always() -> None:
            while True:
                await asyncio.sleep(0.001)
                await self._report(link, epoch)

        await until_one_ends(report_always(), good_flush(self, link, epoch))

    patch.setattr(ReplicationReceiver, "_report", report)
    patch.setattr(ReplicationReceiver, "_flush_rest", flush_rest)
    patch.setattr(ReplicationReceiver, "_flush", flush)


def follow_a_master_of_an_older_epoch(patch: pytest.MonkeyPatch) -> None:
    good = ReplicationReceiver.hello

    async def hello(self: ReplicationReceiver) -> Hello:
        found = await good(self)
        return replace(found, slave=replace(found.slave, epoch=0))

    async def report(self: ReplicationReceiver, link: MasterLink, epoch: int) -> None:
        await link.send(Report(epoch, self._store.end_offset, self._store.flushed_offset))

    patch.setattr(ReplicationReceiver, "hello", hello)
    patch.setattr(ReplicationReceiver, "_report", report)


def serve_in_the_same_epoch_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    good = EpochHistory.begin

    def begin(self: EpochHistory, epoch: int, store_id: str, end: int) -> EpochHistory:
        if self.entries and self.entries[-1].store_id == store_id:
            return self.note(epoch)
        return good(self, epoch, store_id, end)

    patch.setattr(EpochHistory, "begin", begin)


def leave_what_was_cut_behind_the_end(patch: pytest.MonkeyPatch) -> None:
    def cut(self: CommitLog, end: int) -> None:
        self._unsynced.clear()
        self.confirmed = min(self.confirmed, end)
        self._set_end(end)

    patch.setattr(CommitLog, "cut", cut)


def elect_from_outside_the_set(patch: pytest.MonkeyPatch) -> None:
    def electable(self: SimulatedGroup) -> list[int]:
        return [replica.number for replica in self.replicas if replica.is_up]

    patch.setattr(SimulatedGroup, "electable", electable)


def take_an_empty_disk_for_the_one_of_before(patch: pytest.MonkeyPatch) -> None:
    def lose_disk(self: SimulatedReplica) -> None:
        path = CONFIG / "brokerIdentity.json"
        found = self.disk.files().get(path)
        self.disk = SimulatedDisk(self.number)
        if found is not None:
            self.disk.make_directory(CONFIG)
            file = self.disk.open(path, create=True)
            file.pwrite(bytes(found), 0)
            file.sync()

    patch.setattr(SimulatedReplica, "lose_disk", lose_disk)


def believe_any_report(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReportCheck, "check", lambda self, report: None)


# ---- tables ----


def derive_past_a_deletion(patch: pytest.MonkeyPatch) -> None:
    """It is carried out later, at the wrong place."""
    patch.setattr(Deriver, "_until_halt", lambda self, by_queue: len(by_queue.numbers) + 1)


def delete_up_to_the_end_of_the_log(patch: pytest.MonkeyPatch) -> None:
    def delete(self: MetadataReplay, deletion: TopicDeletion) -> None:
        self._store.delete_topic(deletion.topic, self._store.end_offset)

    patch.setattr(MetadataReplay, "_delete", delete)


def keep_a_deletion_that_the_log_has_lost(patch: pytest.MonkeyPatch) -> None:
    for module in (metadata_journal, preparation):
        patch.setattr(module, "unlogged_deletions", lambda _: [])


def answer_a_change_before_it_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    good = MetadataJournal.log

    def log(self: MetadataJournal, table: Table) -> Logged:
        return Logged(good(self, table).position, None)

    patch.setattr(MetadataJournal, "log", log)


def forget_what_the_files_lack(patch: pytest.MonkeyPatch) -> None:
    good = MetadataReplay.restore

    def restore(self: MetadataReplay) -> int:
        self.apply, apply = lambda: 0, self.apply  # type: ignore[method-assign]
        good(self)
        self.apply = apply  # type: ignore[method-assign]
        self.take_over(self._store.confirmed_offset)
        return 0

    patch.setattr(MetadataReplay, "restore", restore)


TABLES = (
    delete_up_to_the_end_of_the_log,
    answer_a_change_before_it_is_confirmed,
    forget_what_the_files_lack,
)

FAILOVER = (
    *TABLES,
    answer_before_the_replicas,
    show_before_confirm,
    confirm_before_the_slaves_sync,
    elect_from_outside_the_set,
    stop_waiting_before_a_leave_is_written,
    confirm_without_a_member_that_has_no_stream,
)

# Each with the scenario that meets it: random histories seldom do.
RARE = (
    (
        keep_a_deletion_that_the_log_has_lost,
        failover.kill_a_master_before_its_deletion_is_in_the_log,
    ),
    (leave_what_was_cut_behind_the_end, failover.kill_an_old_master_after_it_has_cut_its_log),
    (
        serve_in_the_same_epoch_after_a_restart,
        failover.restart_a_master_that_lost_more_than_its_slave,
    ),
    (derive_past_a_deletion, failover.make_a_deleted_topic_again_while_a_slave_is_away),
    (follow_a_master_of_an_older_epoch, failover.bring_a_slave_before_an_old_master),
    (take_an_empty_disk_for_the_one_of_before, failover.lose_a_disk_while_all_are_off),
    (believe_any_report, failover.follow_with_a_slave_that_reports_too_much),
)
