"""Check the status of a broker: its clock, disk, memory and version. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerobee_cli.doctor.finding import Finding

if TYPE_CHECKING:
    from aerobee_client.admin.descriptions import BrokerConflict, BrokerStatus

MAX_CLOCK_OFFSET_MS = 1_000
MAX_MEMORY_PERCENT = 90


@dataclass(frozen=True, slots=True)
class Answer:
    """A broker's status, and the local times of the request and of the answer."""

    status: BrokerStatus
    asked_ms: int
    answered_ms: int


def findings_of(name: str, answer: Answer) -> Iterator[Finding]:
    status = answer.status
    if status.broker_name != name:
        yield Finding(
            "broker",
            name,
            f"at {status.broker_address} answers the broker {status.broker_name}",
            "two brokers advertise one address: set brokerIP1 or listenPort of one of them",
        )
    if status.read_only_reason:
        yield Finding(
            "broker",
            name,
            f"it does not accept messages: {status.read_only_reason}",
            "see to its disk, then restart it",
        )
    if status.corrupted_records_total:
        yield Finding(
            "broker",
            name,
            f"{status.corrupted_records_total} records failed their check since it started",
            "a replica repairs them from another one, and `aerobee broker ha-status` shows what is "
            "left; without replicas they are lost: its log names file and offset",
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
    """Report processes that a name server rejects because another one has their number."""
    for each in sorted(set(found), key=lambda one: (one.broker_name, one.newcomer_address)):
        holder = _process(each.holder_address, each.holder_store_id)
        newcomer = _process(each.newcomer_address, each.newcomer_store_id)
        yield Finding(
            "broker",
            each.broker_name,
            f"two processes have brokerId {each.number}: {holder} is registered, {newcomer} is not",
            "give the second another brokerName or brokerId, or stop one of them",
        )


def _process(address: str, store_id: str) -> str:
    return f"{address} (store {store_id})" if store_id else address


def whereabouts(known: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Report masters that name servers have at different addresses.

    `known`: name server → broker name → address of its master.
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
    marks = status.disk_full_percent, status.disk_max_used_percent
    if marks[0] and (used > marks[0] or status.disk_free_bytes < status.disk_min_free_bytes):
        yield Finding(
            "disk",
            name,
            f"{state}: producers are refused",
            "make room, or keep messages for a shorter time (fileReservedTime, retainBytes)",
        )
    elif marks[1] and used > marks[1]:
        yield Finding(
            "disk",
            name,
            f"{state}, above {marks[1]} %: expired messages are deleted at any hour",
            f"make room before {marks[0]} %, above which producers are refused",
        )


def versions(statuses: Mapping[str, BrokerStatus], own: str) -> Iterator[Finding]:
    """Report brokers that do not have the version of this command, `own`."""
    found = Counter(status.version for status in statuses.values())
    for name, status in sorted(statuses.items()):
        if status.version != own:
            yield Finding(
                "version",
                name,
                f"{status.version or 'unknown'}, where this command has {own}",
                "update what is older" if len(found) == 1 else "update the brokers to one version",
            )
