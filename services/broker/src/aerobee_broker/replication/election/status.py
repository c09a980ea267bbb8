"""Describe the present state of this process as a replica."""

from __future__ import annotations

from dataclasses import replace

from aerobee_broker.errors import NotServed
from aerobee_broker.replication.log.status import ReplicaStatus, Role
from aerobee_broker.replication.role.role_runner import ISOLATED, RoleRunner

OLDER_COPY = (
    "its disk is an older copy, or another process has a copy of it: it may lack messages, and "
    "does not count in a promotion until it has caught up with a master"
)


def replica_status(
    roles: RoleRunner,
    address: str,
    *,
    coordinator_reachable: bool | None = None,
    set_at_coordinator: frozenset[int] = frozenset(),
    claimed_epoch: int = 0,
    waits_because: str = "",
) -> ReplicaStatus:
    """Return the status of this replica; `address` is its "host:port".

    `claimed_epoch` is an epoch that it was elected for, and that its log may not have yet; or 0.

    Raises NotServed while the store opens.
    """
    own, options = roles.own, roles.own.environment.options
    if own.trouble:
        raise roles.refusal()
    if not own.is_open:
        raise NotServed("about to open its store", "")
    store, slave, master = own.store, roles.slave, roles.master
    role, reason = Role.CANDIDATE, store.flush.read_only_reason or waits_because
    if master is not None:
        role = Role.MASTER
        isolated = ISOLATED if roles.is_isolated else ""
        reason = store.flush.read_only_reason or isolated or waits_because
    elif slave is not None:
        role = Role.REFUSED if slave.refusal else Role.SLAVE
        trouble = "" if slave.is_following else slave.trouble
        read_only = store.flush.read_only_reason
        reason = slave.refusal or read_only or store.disk_full_reason or trouble
        if own.is_displaced and not slave.refusal:
            reason = f"{OLDER_COPY} ({reason})" if reason else OLDER_COPY
    log = own.describe()
    return ReplicaStatus(
        replace(log, epoch=max(log.epoch, claimed_epoch)),
        address,
        role,
        store.flushed_offset,
        options.total_replicas,
        options.is_elected,
        reason=reason,
        master_address=address if master else slave.master_address if slave else "",
        following=roles.is_following,
        copying=own.is_unfinished or own.is_displaced,
        has_its_log=own.has_its_log,
        master_end=slave.master_end if slave else 0,
        generation=own.enrollment.generation,
        learner=options.is_learner or bool(own.unfinished.since),
        master=None if master is None else master.status(),
        coordinator_reachable=coordinator_reachable,
        set_at_coordinator=set_at_coordinator,
        damage=own.damage_status,
    )
