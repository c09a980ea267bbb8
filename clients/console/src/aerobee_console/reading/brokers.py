"""The brokers: state, disk, replicas, and what waits at one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from aerobee_client import AsyncAdminClient
from aerobee_client.admin.descriptions import BrokerBacklog, BrokerStatus, ReplicaDescription
from aerobee_console.reading.source import Answer, Asking, Source
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import DLQ_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """A broker. `address` is the one that clients get. `status` is None if it did not answer."""

    broker_name: str
    cluster: str
    address: str | None
    replica_addresses: Mapping[int, str]
    status: BrokerStatus | None

    @property
    def disk_used_percent(self) -> float | None:
        if self.status is None or not self.status.disk_total_bytes:
            return None
        return 100 * (1 - self.status.disk_free_bytes / self.status.disk_total_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerList(Answer):
    """All brokers."""

    namesrvs: tuple[str, ...]
    rows: tuple[BrokerRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPage(Answer):
    """One broker with its replicas and backlog."""

    row: BrokerRow
    replicas: tuple[ReplicaDescription, ...]
    backlog: BrokerBacklog | None


async def broker_list(source: Source) -> BrokerList:
    """Return all brokers, with one call to each master."""
    asking = await source.ask()
    statuses = await asking.of(lambda silent: source.admin.broker_statuses(silent=silent))
    return BrokerList(
        namesrvs=source.namesrvs,
        rows=tuple(_rows(asking, statuses or {})),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


def _rows(asking: Asking, statuses: Mapping[str, BrokerStatus]) -> list[BrokerRow]:
    rows = [
        BrokerRow(
            broker_name=broker.broker_name,
            cluster=broker.cluster,
            address=broker.addresses.get(MASTER_ID),
            replica_addresses={
                number: address
                for number, address in broker.addresses.items()
                if number != MASTER_ID
            },
            status=statuses.get(broker.broker_name),
        )
        for broker in asking.brokers
    ]
    known = {row.broker_name for row in rows}
    rows += [
        BrokerRow(
            broker_name=each.broker_name, cluster="", address=None, replica_addresses={},
            status=None,
        )
        for each in asking.silent
        if each.broker_name not in known
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row.broker_name)


async def broker_page(source: Source, broker_name: str) -> BrokerPage:
    """Return one broker. Raises MqError with the code BROKER_NOT_EXIST if it is unknown."""
    asking = await source.ask()
    admin = source.admin
    status: BrokerStatus | None = None
    backlog: BrokerBacklog | None = None
    replicas: list[ReplicaDescription] = []
    address = asking.masters.get(broker_name)
    if address is not None:

        async def own(silent: list[MqError]) -> tuple[BrokerStatus, BrokerBacklog] | None:
            try:
                return await admin.broker_status(address), await admin.broker_backlog(address)
            except MqError as error:
                error.at_broker(broker_name)
                silent.append(error)
                return None

        answered = await asking.of(own)
        if answered is not None:
            status, backlog = answered

    async def copies(silent: list[MqError]) -> list[ReplicaDescription]:
        try:
            return await admin.replicas(broker_name, silent=silent)
        finally:
            for error in silent:
                error.at_broker(broker_name)

    row = next(
        (
            row
            for row in _rows(asking, {broker_name: status} if status else {})
            if row.broker_name == broker_name
        ),
        None,
    )
    if row is None:
        names = ", ".join(sorted(each.broker_name for each in asking.brokers)) or "none"
        raise MqError(
            Code.BROKER_NOT_EXIST, f"no broker {broker_name!r} is registered: there are {names}"
        )
    if status is not None or row.replica_addresses:
        replicas = await asking.of(copies, of_replicas=True) or []
    return BrokerPage(
        row=row,
        replicas=tuple(replicas),
        backlog=backlog,
        silent=tuple(each for each in asking.silent if each.broker_name == broker_name),
        asked_at_ms=asking.at_ms,
    )


# ---- waiting ----
#
# Sum what waits at the brokers: lag, dead letters, delayed and in-flight messages.


@dataclass(frozen=True, slots=True)
class Waiting:
    """The messages that wait at the brokers that answered."""

    lag_by_group: Counter[str] = field(default_factory=Counter)
    dead_letters_by_group: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    delayed: int = 0
    half: int = 0


async def waiting(admin: AsyncAdminClient, asking: Asking) -> Waiting | None:
    """Return what waits, with one call to each broker; None if no broker answered."""
    found = await asking.of(lambda silent: admin.broker_backlogs(silent=silent))
    return None if found is None else summed(found)


def summed(backlogs: Mapping[str, BrokerBacklog]) -> Waiting:
    """Sum the backlogs of several brokers."""
    sums = Waiting(
        in_flight=sum(each.in_flight for each in backlogs.values()),
        delayed=sum(sum(each.delayed_messages.values()) for each in backlogs.values()),
        half=sum(sum(each.half_messages.values()) for each in backlogs.values()),
    )
    for backlog in backlogs.values():
        for lag in backlog.lags:
            sums.lag_by_group[lag.consumer_group] += lag.messages
        for topic, messages in backlog.dead_letters.items():
            sums.dead_letters_by_group[topic.removeprefix(DLQ_PREFIX)] += messages
    return sums
