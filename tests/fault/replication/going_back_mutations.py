"""Mutations that the scenarios of `operators` must notice: each breaks one rule about disks and
etcd that go back in time. Each stands with the scenario that meets it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from aerobee_broker.replication.election.coordinators import candidates, etcd_coordinator
from aerobee_broker.replication.election.coordinators.coordinator import (
    MasterKey,
    Mastership,
    State,
    StoreRecord,
    View,
)
from aerobee_broker.replication.election.coordinators.etcd_coordinator import EtcdCoordinator
from aerobee_broker.replication.election.elections import Elections
from aerobee_broker.replication.election.enrolling import Enrollment
from aerobee_broker.replication.log.epochs import NOTHING
from aerobee_broker.replication.role.replica_store import ReplicaStore
from fault.replication import operators


def believe_any_disk(patch: pytest.MonkeyPatch) -> None:
    """Start with a disk that is older than the coordinator's record."""
    patch.setattr(Enrollment, "_is_older_than", lambda self, record: False)


def compare_no_generations(patch: pytest.MonkeyPatch) -> None:
    """Only the lengths of logs tell an older copy."""

    def is_older_than(self: Enrollment, record: StoreRecord) -> bool:
        return self._own.recorded_reach < record.reach

    patch.setattr(Enrollment, "_is_older_than", is_older_than)


def compare_no_lengths(patch: pytest.MonkeyPatch) -> None:
    """Only generations tell an older copy."""

    def is_older_than(self: Enrollment, record: StoreRecord) -> bool:
        return self._own.enrollment.generation < record.generation

    patch.setattr(Enrollment, "_is_older_than", is_older_than)


def ignore_the_floor(patch: pytest.MonkeyPatch) -> None:
    good = etcd_coordinator._state

    def state(content: Mapping[str, Any]) -> State:
        return replace(good(content), floor=NOTHING)

    patch.setattr(etcd_coordinator, "_state", state)


def ask_no_other_replica(patch: pytest.MonkeyPatch) -> None:
    """Candidacies at etcd, which are some seconds old, say how far logs go."""

    async def asked(self: Elections, view: View) -> View:
        return view

    patch.setattr(Elections, "_asked", asked)


def take_every_process_for_current(patch: pytest.MonkeyPatch) -> None:
    """A member that has just started is elected at once."""
    patch.setattr(Elections, "_is_current", lambda self, view: view.state is not None)


def elect_a_damaged_replica(patch: pytest.MonkeyPatch) -> None:
    """And let it derive what is behind the damage."""
    patch.setattr(ReplicaStore, "is_whole", True)


def begin_a_group_with_any_log(patch: pytest.MonkeyPatch) -> None:
    """Where etcd has no state, a log with an epoch counts as one of a new group."""

    def without_a_state(view: View, standing: candidates.Standing) -> candidates.Decision:
        return candidates.Decision(0)

    patch.setattr(candidates, "_without_a_state", without_a_state)


def trust_an_older_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(View, "trusted_state", lambda self, seen: self.state)


def leave_a_lost_state_lost(patch: pytest.MonkeyPatch) -> None:
    """A living master does not write its state back."""

    async def restore(self: EtcdCoordinator, mastership: Mastership) -> None:
        await asyncio.sleep(1)

    patch.setattr(EtcdCoordinator, "restore", restore)


def follow_no_lost_state(patch: pytest.MonkeyPatch) -> None:
    """Of an older etcd, revisions that are lower than those known are ignored for good."""
    patch.setattr(EtcdCoordinator, "_went_back", lambda self, known, revision: None)


def claim_beside_a_process_with_the_same_store(patch: pytest.MonkeyPatch) -> None:
    """Its key counts as that of the process before this one."""

    async def is_alive(self: Elections, own: MasterKey) -> bool:
        return False

    patch.setattr(Elections, "_is_alive", is_alive)


def claim_beside_a_longer_log(patch: pytest.MonkeyPatch) -> None:
    """After a while, as beside members that are missing."""
    good = candidates._after_a_start

    def after_a_start(standing: candidates.Standing, *given: Any) -> candidates.Decision:
        decision = good(standing, *given)
        return replace(decision, wait_ms=0, yields=False) if decision.yields else decision

    patch.setattr(candidates, "_after_a_start", after_a_start)


MUTATIONS = (
    (claim_beside_a_process_with_the_same_store, operators.start_a_second_process_with_a_number),
    (claim_beside_a_longer_log, operators.put_back_a_copy_of_the_master),
    (believe_any_disk, operators.put_back_a_copy_of_a_running_disk),
    (compare_no_generations, operators.put_back_a_copy_that_lacks_the_last_moment),
    (compare_no_lengths, operators.put_back_a_copy_of_a_running_disk),
    (ignore_the_floor, operators.put_back_a_copy_of_a_slave_that_has_just_joined),
    (ask_no_other_replica, operators.put_back_a_copy_of_the_master),
    (take_every_process_for_current, operators.put_back_a_copy_of_the_master),
    (elect_a_damaged_replica, operators.damage_a_slave_that_starts_first),
    (begin_a_group_with_any_log, operators.wipe_etcd_while_all_are_off),
    (trust_an_older_state, operators.give_an_older_etcd_to_one_that_knows_better),
    (leave_a_lost_state_lost, operators.wipe_etcd_under_a_living_group),
    (follow_no_lost_state, operators.wipe_etcd_under_a_living_group),
)
