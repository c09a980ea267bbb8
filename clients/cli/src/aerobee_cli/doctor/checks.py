"""Check brokers, replicas, topics, groups and their members, without I/O.

Each function yields the findings about one kind of data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from aerobee_cli import output
from aerobee_cli.connected import conflict_texts
from aerobee_cli.doctor.broker_group import no_master
from aerobee_cli.output import counted
from aerobee_wire.certificates import needs_no_tls

if TYPE_CHECKING:
    from aerobee_cli.doctor.broker_group import AbsentReplica
    from aerobee_client.admin.descriptions import (
        AwayProxy,
        BrokerConflict,
        BrokerStatus,
        Change,
        ClientDescription,
        GroupDescription,
        ReplicaDescription,
        TopicDescription,
    )
    from aerobee_wire.status import MqError

MAX_CLOCK_OFFSET_MS = 1_000
MAX_REPLICA_CLOCK_OFFSET_MS = 500
MAX_MEMORY_PERCENT = 90


@dataclass(frozen=True, slots=True)
class Finding:
    # The kind of the checked item: name server, broker, replica, clock, disk, memory, version,
    # route, topic, group.
    check: str
    # The name of the checked item.
    subject: str
    problem: str
    advice: str
    # Whether it is only a hint: the exit code does not depend on it.
    hint: bool = False

    @property
    def text(self) -> str:
        text = f"{self.check} {self.subject}: {self.problem}; {self.advice}"
        return f"hint: {text}" if self.hint else text


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's status, and the local times of the request and of the answer."""

    status: BrokerStatus
    asked_ms: int
    answered_ms: int


def of_broker(name: str, answer: Answer) -> Iterator[Finding]:
    status = answer.status
    finding = partial(Finding, "broker", name)
    if status.broker_name != name:
        yield finding(
            f"at {status.broker_address} answers the broker {status.broker_name}",
            "two brokers advertise one address: set brokerIP1 or listenPort of one of them",
        )
    if status.read_only_reason:
        yield finding(
            f"it does not accept messages: {status.read_only_reason}",
            "see to its disk, then restart it",
        )
    if status.corrupted_records_total:
        yield finding(
            f"{status.corrupted_records_total} records failed their check since it started",
            "a replica repairs them from another one, and `aerobee broker ha-status` shows what is "
            "left; without replicas they are lost: its log names file and offset",
        )
    if status.draining_since_ms:
        yield Finding(
            "broker",
            name,
            f"it refuses producers since {output.iso_time(status.draining_since_ms)}: it drains",
            f"stop it when it is empty, or run aerobee broker drain {name} --undo",
            hint=True,
        )
    yield from _clock(name, answer)
    yield from _disk(name, status)
    limit = status.memory_limit_bytes
    if limit and status.resident_memory_bytes * 100 > limit * MAX_MEMORY_PERCENT:
        yield Finding(
            "memory",
            name,
            f"it holds {status.resident_memory_bytes:,} of {limit:,} bytes that it may",
            "give it more, or fewer messages with a time of their own (timerMaxMessages)",
        )


def conflicts(found: Iterable[BrokerConflict]) -> Iterator[Finding]:
    """Report processes that a name server rejects because another process has their brokerId."""
    for each in sorted(set(found), key=lambda one: (one.broker_name, one.newcomer_address)):
        holder = _process(each.holder_address, each.holder_store_id)
        newcomer = _process(each.newcomer_address, each.newcomer_store_id)
        yield Finding(
            "broker",
            each.broker_name,
            f"two processes have brokerId {each.number}: {holder} is registered, {newcomer} is not",
            "give the second another brokerName or brokerId, or stop one of them",
        )


def away(names: Iterable[str]) -> Iterator[Finding]:
    """Report brokers that have left the name servers without being drained."""
    for name in names:
        yield Finding(
            "broker",
            name,
            "it was registered, and is not any more",
            "start it again; its messages are missing until then. Drain a broker before you remove "
            "it (aerobee broker drain)",
        )


def away_proxies(listed: Iterable[AwayProxy], present: Collection[str]) -> Iterator[Finding]:
    """Report proxies that did not stop in order, unless a name server has them in `present`."""
    since = {each.name: each.since_timestamp_ms for each in listed if each.name not in present}
    for name, since_ms in sorted(since.items()):
        yield Finding(
            "proxy",
            name,
            f"it is missing since {output.iso_time(since_ms, milliseconds=False)}",
            "start it again; if it was removed, it is listed for 24 hours",
        )


def open_ports(check: str, addresses: Iterable[str]) -> Iterator[Finding]:
    """Report servers off loopback that answered a caller without a certificate.

    `check` is the kind of these servers.
    """
    found = [each for each in addresses if not needs_no_tls(each.rpartition(":")[0])]
    if found:
        yield Finding(
            check,
            ", ".join(found),
            "it serves callers without a certificate, and other machines may reach its address",
            "close its port with `aerobee certs init` (tlsServerMode=enforcing)",
        )


def _process(address: str, store_id: str) -> str:
    return f"{address} (store {store_id})" if store_id else address


def whereabouts(known: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Report masters whose addresses differ between name servers.

    `known` maps each name server to the addresses of the masters by broker name.
    """
    for name in sorted({name for there in known.values() for name in there}):
        addresses = {namesrv: there[name] for namesrv, there in known.items() if name in there}
        if len(set(addresses.values())) > 1:
            places = ", ".join(f"{address} ({namesrv})" for namesrv, address in addresses.items())
            yield Finding(
                "broker",
                name,
                f"name servers have it at different addresses: {places}",
                "two processes have one brokerId, or a failover is under way: stop one, or look "
                "again",
            )


def _clock(name: str, answer: Answer) -> Iterator[Finding]:
    now_ms = answer.status.now_timestamp_ms
    if not now_ms:  # version 0.1 does not report its clock
        return
    # The broker read its clock between the request and the answer.
    offset_ms = max(now_ms - answer.answered_ms, 0) + min(now_ms - answer.asked_ms, 0)
    if abs(offset_ms) > MAX_CLOCK_OFFSET_MS:
        ahead = "ahead of" if offset_ms > 0 else "behind"
        yield Finding(
            "clock",
            name,
            f"it is {abs(offset_ms) / 1000:.1f} s {ahead} the clock here",
            "synchronise both (chrony, ntpd): delivery times and offsets by time are off",
        )


def _disk(name: str, status: BrokerStatus) -> Iterator[Finding]:
    if not status.disk_total_bytes:
        return
    used = 100 - 100 * status.disk_free_bytes / status.disk_total_bytes
    state = f"{used:.0f} % used, {status.disk_free_bytes:,} bytes free"
    finding = partial(Finding, "disk", name)
    marks = status.disk_full_percent, status.disk_max_used_percent
    if marks[0] and (used > marks[0] or status.disk_free_bytes < status.disk_min_free_bytes):
        yield finding(
            f"{state}: producers are refused",
            "make room, or keep messages for a shorter time (fileReservedTime, retainBytes)",
        )
    elif marks[1] and used > marks[1]:
        yield finding(
            f"{state}, above {marks[1]} %: expired messages are deleted at any hour",
            f"make room before {marks[0]} %, above which producers are refused",
        )


def versions(statuses: Mapping[str, BrokerStatus], own: str) -> Iterator[Finding]:
    """Report brokers whose version differs from `own`, the version of this command."""
    found = Counter(status.version for status in statuses.values())
    for name, status in sorted(statuses.items()):
        if status.version != own:
            yield Finding(
                "version",
                name,
                f"{status.version or 'unknown'}, where this command has {own}",
                "update what is older" if len(found) == 1 else "update the brokers to one version",
            )


def of_replicas(
    name: str,
    replicas: Sequence[ReplicaDescription],
    silent: Sequence[MqError],
    absent: Sequence[AbsentReplica] = (),
) -> Iterator[Finding]:
    """Report problems of the replicas of a broker.

    `silent` has the errors of registered replicas that do not answer. `absent` are the replicas
    that do not answer, registered or not.
    """
    finding = partial(Finding, "replica", name)
    for error in silent:
        advice = "start it, or see why it cannot be reached; the others continue if they suffice"
        yield finding(error.message, advice)
    master = next((each for each in replicas if each.role == "master"), None)
    if master is None and replicas:
        yield finding(*no_master(name, replicas, absent))
    elif master is None:
        advice = "start one of them; without etcd, promote it"
        yield finding("none of its replicas answers", advice)
    elif len(master.in_sync_replicas or ()) < (master.required_replicas or 0):
        yield finding(
            f"it does not accept messages: {len(master.in_sync_replicas or ())} of the "
            f"{master.required_replicas} copies that inSyncReplicas asks for are in sync",
            "bring the others back",
        )
    copies = len(silent) + sum(not each.learner for each in replicas)
    wanted = max((each.total_replicas for each in replicas), default=0)
    if copies < wanted:
        problem = f"name servers know {copies} of its {wanted} copies (totalReplicas)"
        yield finding(problem, "start the others")
    for each in replicas:
        yield from _of_replica(f"{name}, replica {each.replica_id}", each, has_master=bool(master))
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


def _of_replica(
    subject: str, replica: ReplicaDescription, *, has_master: bool
) -> Iterator[Finding]:
    finding = partial(Finding, "replica", subject)
    if replica.role == "refused":
        advice = "change what it names, and restart it"
        yield finding(f"its master refuses it: {replica.reason}", advice)
    elif replica.reason and (has_master or replica.master_address):  # else reported for the group
        yield finding(replica.reason, "its log says more")
    elif has_master and not (replica.in_sync or replica.learner):
        percent = replica.copied_percent
        state = "" if percent is None else f", and has copied {percent} % of its master's log"
        yield finding(
            f"it is not in sync{state}",
            "wait until it has caught up (aerobee broker ha-status)",
        )
    if replica.coordinator_reachable is False:
        yield finding(
            "it does not reach etcd",
            "check etcd (etcdEndpoints): without it no master is elected, and the set is fixed",
        )
    offset_ms = replica.clock_offset_ms or 0
    if abs(offset_ms) > MAX_REPLICA_CLOCK_OFFSET_MS:
        ahead = "ahead of" if offset_ms > 0 else "behind"
        yield Finding(
            "clock",
            subject,
            f"it is {abs(offset_ms) / 1000:.1f} s {ahead} its master's",
            "synchronise both (chrony, ntpd): after a failover delivery times are off by that",
        )


def topics(listed: Iterable[TopicDescription], brokers: Collection[str]) -> Iterator[Finding]:
    """Report topics that differ between brokers or are missing on a broker.

    `brokers` are the answering brokers that must have every topic. Draining brokers are not among
    them.
    """
    from aerobee_client.admin.descriptions import differences

    for topic in listed:
        name = topic.topic
        finding = partial(Finding, "topic", name)
        lacking = sorted(set(brokers) - {there.broker_name for there in topic.brokers})
        if lacking:
            yield finding(f"no queues on {', '.join(lacking)}", f"aerobee topic rebalance {name}")
        changes = [
            change
            for one, other in pairwise(topic.brokers)
            for change in differences(name, other.broker_name, one, other)
            if change.setting not in ("broker_name", "address")
        ]
        if changes:
            problem = f"its settings differ on {_texts(changes)}"
            yield finding(problem, f"aerobee topic update {name}")
        for there in topic.brokers:
            if there.write_queue_count > there.read_queue_count:
                yield finding(
                    f"no consumer reads queues {there.read_queue_count} to "
                    f"{there.write_queue_count - 1} on {there.broker_name}, which get messages",
                    f"aerobee topic update {name} --read-queues {there.write_queue_count}",
                )


def groups(of_brokers: Mapping[str, Iterable[GroupDescription]]) -> Iterator[Finding]:
    """Report groups that differ between brokers or are missing on a broker.

    `of_brokers` are the groups by broker name.
    """
    from aerobee_client.admin.descriptions import differences

    found: dict[str, dict[str, GroupDescription]] = {}
    for broker, listed in of_brokers.items():
        for group in listed:
            found.setdefault(group.consumer_group, {})[broker] = group
    for name, there in sorted(found.items()):
        finding = partial(Finding, "group", name)
        lacking = sorted(of_brokers.keys() - there.keys())
        if lacking:
            yield finding(
                f"missing on {', '.join(lacking)}",
                f"aerobee group create {name}, with the settings that aerobee group show {name} "
                "has: where it exists nothing changes",
            )
        changes = [
            change
            for (_, one), (broker, other) in pairwise(sorted(there.items()))
            for change in differences(name, broker, one, other)
            if change.setting != "brokers"
        ]
        if changes:
            problem = f"its settings differ on {_texts(changes)}"
            yield finding(problem, f"aerobee group update {name}")


def subscriptions(clients: Collection[ClientDescription]) -> Iterator[Finding]:
    """Report groups whose members subscribe or consume differently."""
    for group in sorted({group for client in clients for group in client.consumer_groups}):
        for problem in conflict_texts(clients, group):
            advice = "have all members consume alike, or give them groups of their own"
            yield Finding("group", group, problem, advice)


def _texts(changes: Iterable[Change]) -> str:
    return ", ".join(
        f"{change.broker_name} ({change.option} {after}, elsewhere {before})"
        for change in changes
        for before, after in [change.texts]
    )
