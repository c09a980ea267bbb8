"""Mutations of replication: defects that its histories must notice. Each replaces one function by
one that is wrong in the way its name says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from aerobee_broker.replication import handshake
from aerobee_broker.replication.epochs import EpochEntry, EpochHistory
from aerobee_broker.replication.handshake import Action, Agreement, LogDescription
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync import InSyncSet, Members

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
)
