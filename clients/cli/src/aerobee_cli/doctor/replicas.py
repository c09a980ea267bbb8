"""Check the replicas of a broker: master, in-sync set and slaves without a master. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from aerobee_cli.doctor.broker_group import no_master
from aerobee_cli.doctor.finding import Finding
from aerobee_cli.output import counted

if TYPE_CHECKING:
    from aerobee_cli.doctor.broker_group import AbsentReplica
    from aerobee_client.admin.descriptions import ReplicaDescription
    from aerobee_wire.status import MqError

MAX_CLOCK_OFFSET_MS = 500


def findings_of(
    name: str,
    replicas: Sequence[ReplicaDescription],
    silent: Sequence[MqError],
    absent: Sequence[AbsentReplica] = (),
) -> Iterator[Finding]:
    """Report problems of the replicas of a broker.

    `silent` has the errors of registered replicas that do not answer. `absent` are the replicas
    that do not answer, registered or not.
    """
    for error in silent:
        advice = "start it, or see why it cannot be reached; the others continue if they suffice"
        yield Finding("replica", name, error.message, advice)
    master = next((each for each in replicas if each.role == "master"), None)
    if master is None and replicas:
        yield Finding("replica", name, *no_master(name, replicas, absent))
    elif master is None:
        advice = "start one of them; without etcd, promote it"
        yield Finding("replica", name, "none of its replicas answers", advice)
    elif len(master.in_sync_replicas or ()) < (master.required_replicas or 0):
        yield Finding(
            "replica",
            name,
            f"it does not accept messages: {len(master.in_sync_replicas or ())} of the "
            f"{master.required_replicas} copies that inSyncReplicas asks for are in sync",
            "bring the others back",
        )
    copies = len(silent) + sum(not each.learner for each in replicas)
    wanted = max((each.total_replicas for each in replicas), default=0)
    if copies < wanted:
        problem = f"name servers know {copies} of its {wanted} copies (totalReplicas)"
        yield Finding("replica", name, problem, "start the others")
    for each in replicas:
        yield from _of_one(f"{name}, replica {each.replica_id}", each, has_master=bool(master))
        yield from _damage(name, each, replicas)


def _damage(
    name: str, replica: ReplicaDescription, replicas: Sequence[ReplicaDescription]
) -> Iterator[Finding]:
    if not replica.damaged_bytes:
        return
    whole = [
        str(each.replica_id)
        for each in replicas
        if not (each.damaged_bytes or each.copying) and each is not replica
    ]
    advice = (
        f"wait: it repairs them from replica {' or '.join(whole)}; keep the disks of all"
        if whole
        else "start the other replicas, from one of which it repairs them; keep the disks of all: "
        "a replica that starts with an empty storePathRootDir loses what it alone has"
    )
    yield Finding(
        "replica",
        f"{name}, replica {replica.replica_id}",
        f"{replica.damaged_bytes:,} bytes of its log are damaged "
        f"({counted(replica.damaged_ranges, 'part')})",
        advice,
    )


def _of_one(subject: str, replica: ReplicaDescription, *, has_master: bool) -> Iterator[Finding]:
    if replica.role == "refused":
        advice = "change what it names, and restart it"
        yield Finding("replica", subject, f"its master refuses it: {replica.reason}", advice)
    elif replica.reason and (has_master or replica.master_address):  # else reported for the group
        yield Finding("replica", subject, replica.reason, "its log says more")
    elif has_master and not (replica.in_sync or replica.learner):
        percent = replica.copied_percent
        state = "" if percent is None else f", and has copied {percent} % of its master's log"
        yield Finding(
            "replica",
            subject,
            f"it is not in sync{state}",
            "wait until it has caught up (aerobee broker ha-status)",
        )
    if replica.coordinator_reachable is False:
        yield Finding(
            "replica",
            subject,
            "it does not reach etcd",
            "check etcd (etcdEndpoints): without it no master is elected, and the set is fixed",
        )
    offset_ms = replica.clock_offset_ms or 0
    if abs(offset_ms) > MAX_CLOCK_OFFSET_MS:
        ahead = "ahead of" if offset_ms > 0 else "behind"
        yield Finding(
            "clock",
            subject,
            f"it is {abs(offset_ms) / 1000:.1f} s {ahead} its master's",
            "synchronise both (chrony, ntpd): after a failover delivery times are off by that",
        )
