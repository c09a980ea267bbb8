"""Combine the reports of a broker's replicas.

The module finds replicas that do not answer, and the next step if there is no master.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerobee_wire.route import FORMER_MASTER_ID, MASTER_ID
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import ReplicaDescription


@dataclass(frozen=True, slots=True)
class AbsentReplica:
    """A replica that does not answer.

    `replica_id` is None if it is unknown. `address` is the registered address, or "" if the replica
    is not registered.
    """

    replica_id: int | None
    address: str

    @property
    def problem(self) -> str:
        return "does not answer" if self.address else "is not registered"

    @property
    def name(self) -> str:
        return "a replica" if self.replica_id is None else f"replica {self.replica_id}"


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """The replicas of a broker.

    `replicas` are the replicas that answer; the list is empty if the broker keeps one copy.
    `absent` are the replicas that do not answer. `silent` has the errors of registered replicas
    that do not answer.
    """

    name: str
    replicas: Sequence[ReplicaDescription]
    absent: Sequence[AbsentReplica]
    silent: Sequence[MqError]

    @property
    def has_no_master(self) -> bool:
        return bool(self.replicas) and all(each.role != "master" for each in self.replicas)

    @property
    def is_complete(self) -> bool:
        return not (self.silent or self.absent or self.has_no_master)

    @property
    def notes(self) -> list[str]:
        """Notes for the user about problems of the replicas, one sentence each."""
        found = []
        if self.has_no_master:
            problem, step = no_master(self.name, self.replicas, self.absent)
            found.append(f"{self.name} {problem}: {step}")
        found += [error.message for error in self.silent]
        unregistered = sum(not each.address for each in self.absent)
        if unregistered:
            total = max(each.total_replicas for each in self.replicas)
            verb = "is" if unregistered == 1 else "are"
            found.append(f"{unregistered} of {total} replicas {verb} not registered")
        return found


def look_at(admin: AdminClient, name: str) -> BrokerGroup:
    """Request the state of all replicas of a broker.

    Raises MqError with the code BROKER_NOT_EXIST if the broker is not registered. If no replica
    answers, raises the error of one replica.
    """
    registered = {each.broker_name: each.addresses for each in admin.cluster().brokers}
    silent: list[MqError] = []
    found = admin.replicas(name, silent=silent)
    return BrokerGroup(name, found, absent_replicas(found, registered.get(name, {})), silent)


def unregistered(name: str, absent: Iterable[AbsentReplica] | MqError) -> list[str]:
    """Return a sentence for each replica of the broker `name` that is not registered any more.

    `absent` is an error if the replicas are unknown. A command that worked on the other replicas
    reports it as a sentence too.
    """
    if isinstance(absent, MqError):
        return [f"it is unknown whether {name} has further replicas: {absent.message}"]
    return [
        f"{each.name} of {name} is not registered: start it again"
        for each in absent
        if not each.address
    ]


def absent_replicas(
    found: Sequence[ReplicaDescription], registered: Mapping[int, str]
) -> list[AbsentReplica]:
    """Return the replicas that do not answer.

    They are `registered` replicas (addresses by registration id) that are not in `found`, and
    further replicas that are missing to reach `totalReplicas`. Without etcd, the replica ids of a
    group are 0 to totalReplicas - 1. With etcd, each replica has the id of its own options, and
    only the in-sync set contains the id of a missing replica.
    """
    if not found:
        return []
    elected = any(each.elected for each in found)
    total = max(each.total_replicas for each in found)
    missing = _missing_ids(found, total, elected=elected)
    answering = {each.address for each in found}
    absent: list[AbsentReplica] = []
    for registration_id, address in sorted(registered.items(), reverse=True):
        if address in answering:
            continue
        number: int | None = registration_id
        if registration_id == FORMER_MASTER_ID and not elected:
            number = 0
        elif registration_id == MASTER_ID:  # a master registers with this id
            number = missing[0] if len(missing) == 1 else None
        if number in missing:
            missing.remove(number)
        absent.append(AbsentReplica(number, address))
    copies = sum(not each.learner for each in found) + sum(
        elected or each.replica_id is None or each.replica_id < total for each in absent
    )
    count = max(0, total - copies)
    named = missing if len(missing) == count else [None] * count
    return absent + [AbsentReplica(number, "") for number in named]


def no_master(
    name: str, found: Sequence[ReplicaDescription], absent: Sequence[AbsentReplica]
) -> tuple[str, str]:
    """Return the problem of a group whose master does not answer, and the next step.

    The problem is a phrase that follows the group's name.
    """
    copies = sum(not each.learner for each in found)
    total = max(copies, *(each.total_replicas for each in found))
    answer = f"{copies} of its {total} replicas {'answers' if copies == 1 else 'answer'}"
    if not any(each.elected for each in found):
        return f"has no master; {answer}", f"aerobee broker promote {name}"
    waiting = [
        f"replica {each.replica_id}: {each.reason}"
        for each in found
        if each.role == "candidate" and each.reason
    ]
    if all(each.coordinator_reachable is False for each in found):
        step = "etcd does not answer, so no master is elected: start it, or make it reachable"
    elif waiting:
        step = (
            "; ".join(waiting) + f"; if a replica is gone for good, aerobee broker promote {name} "
            "--unclean gives up the messages that only it has"
        )
    elif able := [
        str(each.replica_id) for each in found if each.in_sync and each.coordinator_reachable
    ]:
        step = f"etcd elects one of those in sync that answer ({', '.join(able)}) within seconds"
    else:
        step = "etcd elects one of the in-sync replicas"
        if absent:
            away = ", ".join(f"{each.name} {each.problem}" for each in _needed(found, absent))
            step += (
                f"; {away}: start it if the election waits for it, or, if it is gone for good, "
                f"aerobee broker promote {name} --unclean"
            )
    return f"has no master; {answer}", step


def _needed(
    found: Sequence[ReplicaDescription], absent: Sequence[AbsentReplica]
) -> Sequence[AbsentReplica]:
    """Return the absent replicas that are in sync, or all absent ones if none is known to be."""
    members = {number for each in found for number in each.in_sync_replicas or ()}
    return [each for each in absent if each.replica_id in members] or absent


def _missing_ids(found: Sequence[ReplicaDescription], total: int, *, elected: bool) -> list[int]:
    """Return the replica ids that are not among `found`."""
    known = {each.replica_id for each in found}
    if elected:
        named = {number for each in found for number in each.in_sync_replicas or ()}
        return sorted(named - known)
    return [number for number in range(total) if number not in known]
