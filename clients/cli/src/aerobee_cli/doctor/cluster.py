"""Check a cluster like a classic client: the name servers, then the brokers that they know."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from aerobee_cli.doctor import checks
from aerobee_cli.doctor.broker_group import BrokerGroup, look_at
from aerobee_cli.doctor.checks import Answer, Finding
from aerobee_cli.errors import CommandError
from aerobee_cli.output import counted, iso_time
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import MqError
from aerobee_wire.version import VERSION

if TYPE_CHECKING:
    from aerobee_client import AdminClient, Credentials
    from aerobee_client.admin.descriptions import (
        AwayProxy,
        BrokerConflict,
        BrokerStatus,
        ClientDescription,
    )
    from aerobee_client.admin.statistics import GroupRow, Page, TopicRow


DEFAULT_IDLE_MS = 30 * 86_400_000


@dataclass(slots=True)
class Diagnosis:
    findings: list[Finding] = field(default_factory=list)
    # The checked items, as text.
    looked_at: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        """The findings that are not hints."""
        return [each for each in self.findings if not each.hint]


def diagnose(
    namesrvs: Sequence[str],
    credentials: Credentials | None = None,
    *,
    idle_ms: int = DEFAULT_IDLE_MS,
) -> Diagnosis:
    """Check a cluster, as the user with these credentials or with those of the environment.

    Topics and groups that were not used for `idle_ms` are hints. They are known only if all brokers
    answer.

    Raises CommandError if no name server answers, or if no broker is registered.
    """
    from aerobee_client import AdminClient, Tls

    found = Diagnosis()
    masters = _masters(namesrvs, credentials, found)
    reached: dict[str, Answer] = {}
    with AdminClient(namesrvs, credentials=credentials) as admin:
        for name, address in masters.items():
            try:
                reached[name] = _ask(admin, address)
            except MqError as error:
                found.findings.append(
                    Finding(
                        "broker",
                        name,
                        f"clients get {address}, and from here: {error.message}",
                        "start it; if it runs, have it advertise what clients reach (brokerIP1)",
                    )
                )
            else:
                found.findings += checks.of_broker(name, reached[name])
        if Tls.from_environment() is None:
            found.findings += checks.open_ports("broker", (masters[name] for name in reached))
        statuses = {name: answer.status for name, answer in reached.items()}
        found.findings += checks.versions(statuses, VERSION)
        found.looked_at += [f"{counted(len(masters), 'master')} ({len(reached)} reached)"]
        _look_at_replicas(admin, found)
        if reached:
            staying = {name for name, status in statuses.items() if not status.draining_since_ms}
            clients = _look_at_settings(admin, namesrvs, credentials, staying, found)
            if not any(each.check == "broker" for each in found.problems):
                found.findings += look(admin, statuses, clients, idle_ms)
    return found


def _look_at_replicas(admin: AdminClient, found: Diagnosis) -> None:
    """Check the replicas of all brokers that keep more than one copy."""
    number = 0
    for broker in admin.cluster().brokers:
        name = broker.broker_name
        try:
            group = look_at(admin, name)
        except MqError as error:
            group = BrokerGroup(name, [], [], [error])
        there = group.replicas
        # Skip a broker that keeps one copy, or was reported already.
        if there or MASTER_ID not in broker.addresses:
            found.findings += checks.of_replicas(name, there, group.silent, group.absent)
            number += len(there)
    if number:
        found.looked_at.append(counted(number, "replica"))


def _masters(
    namesrvs: Sequence[str], credentials: Credentials | None, found: Diagnosis
) -> dict[str, str]:
    """Return the addresses of the masters that any name server knows, by broker name."""
    from aerobee_client import AdminClient, Tls

    known: dict[str, dict[str, str]] = {}
    conflicts: list[BrokerConflict] = []
    away: set[str] = set()
    proxies: set[str] = set()
    away_proxies: list[AwayProxy] = []
    registered = False
    for namesrv in namesrvs:
        with AdminClient(namesrv, credentials=credentials) as admin:
            try:
                cluster = admin.cluster()
            except MqError as error:
                problem, advice = error.message, "start it, or take it from the list"
                found.findings.append(Finding("name server", namesrv, problem, advice))
                continue
        listed = cluster.brokers
        conflicts += cluster.conflicts
        away.update(cluster.away)
        proxies.update(each.name for each in cluster.proxies)
        away_proxies += cluster.away_proxies
        registered = registered or bool(listed)
        known[namesrv] = {
            each.broker_name: each.addresses[MASTER_ID]
            for each in listed
            if MASTER_ID in each.addresses
        }
    if not known:
        raise CommandError("; ".join(finding.problem for finding in found.findings))
    masters = {name: address for each in known.values() for name, address in each.items()}
    if not registered and not away:
        raise CommandError(f"no broker is registered at {'; '.join(known)}: start one")
    found.looked_at.append(counted(len(known), "name server"))
    if Tls.from_environment() is None:
        found.findings += checks.open_ports("name server", known)
    for namesrv, brokers_there in known.items():
        missing = sorted(masters.keys() - brokers_there.keys())
        if missing:
            found.findings.append(
                Finding(
                    "name server",
                    namesrv,
                    f"does not know {', '.join(missing)}, which others know",
                    "name all name servers to each broker (namesrvAddr)",
                )
            )
    found.findings += checks.away(sorted(away - masters.keys()))
    found.findings += checks.away_proxies(away_proxies, proxies)
    found.findings += checks.whereabouts(known)
    found.findings += checks.conflicts(conflicts)
    return masters


def _ask(admin: AdminClient, address: str) -> Answer:
    admin.broker_status(address)  # opens the connection: its time would distort the clock's
    asked_ms = time.time_ns() // 1_000_000
    status = admin.broker_status(address)
    return Answer(status, asked_ms, time.time_ns() // 1_000_000)


def _look_at_settings(
    admin: AdminClient,
    namesrvs: Sequence[str],
    credentials: Credentials | None,
    staying: set[str],
    found: Diagnosis,
) -> list[ClientDescription]:
    """Check topics, groups and routes. Return the connected clients.

    `staying` are the reached brokers that are not draining.
    """
    silent: list[MqError] = []
    topics = admin.list_topics(silent=silent)
    groups = admin.groups_of_brokers(silent=silent)
    clients = admin.list_clients(silent=silent)
    found.findings += checks.topics(topics, staying)
    found.findings += checks.groups(
        {broker: listed for broker, listed in groups.items() if broker in staying}
    )
    found.findings += checks.subscriptions(clients)
    for namesrv in namesrvs:
        found.findings += _routes(
            namesrv,
            credentials,
            {
                topic.topic: {there.broker_name for there in topic.brokers} & staying
                for topic in topics
            },
        )
    number = len({group.consumer_group for listed in groups.values() for group in listed})
    found.looked_at += [
        counted(len(topics), "topic"),
        counted(number, "group"),
        counted(len(clients), "client"),
    ]
    return clients


def _routes(
    namesrv: str, credentials: Credentials | None, wanted: dict[str, set[str]]
) -> Iterator[Finding]:
    """Report topics whose routes at a name server lack a broker.

    `wanted` are the brokers of each topic.
    """
    from aerobee_client import AdminClient

    brokers = sorted({name for names in wanted.values() for name in names})
    try:
        with AdminClient(namesrv, credentials=credentials) as admin:
            routed = {name: frozenset(admin.routed_topics(name)) for name in brokers}
    except MqError as error:
        advice = "update it if it is older; set enableTopicList=true if the list is turned off"
        yield Finding("name server", namesrv, f"its routes are unknown: {error.message}", advice)
        return
    for topic, names in wanted.items():
        lacking = sorted(name for name in names if topic not in routed[name])
        if lacking:
            yield Finding(
                "route",
                topic,
                f"{namesrv} does not return {', '.join(lacking)} to clients",
                "wait for the next registration (30 s); if it stays, see the broker's log",
            )


# ---- unused ----
#
# Find topics and groups that no client has used for a long time.
#
# These are hints, not problems: a topic may be for a job that runs once a year. The number of calls
# has a limit, whatever the number of topics and groups.


PAGE = 1_000  # rows of one call to each broker
MAX_ROWS = 20_000  # topics, and groups, that are looked at
# Topics, and groups, whose newest or oldest message is asked for, with one call to each broker.
MAX_ASKED = 100
MAX_SHOWN = 20  # hints of one kind: one more says how many there are

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Idle:
    """A topic or group without clients, and since when. `reason` is a part of a sentence."""

    name: str
    reason: str


def look(
    admin: AdminClient,
    statuses: Mapping[str, BrokerStatus],
    clients: Collection[ClientDescription],
    idle_ms: int,
) -> list[Finding]:
    """Return hints at topics and groups that were not used for `idle_ms`.

    `statuses` are the brokers, all of which answered. `clients` are all connected clients.
    """
    if not statuses:
        return []
    now_ms = max(status.now_timestamp_ms for status in statuses.values())
    before_ms = now_ms - idle_ms
    started_ms = max(status.start_timestamp_ms for status in statuses.values())
    topics = list(_topics(admin, clients, before_ms, started_ms))
    groups = list(_groups(admin, before_ms, started_ms))
    return [
        *_hints("topic", topics, "if it is not needed, aerobee topic delete {}"),
        *_hints("group", groups, "start its consumers, or aerobee group delete {}"),
    ]


def _hints(check: str, found: Sequence[Idle], advice: str) -> Iterator[Finding]:
    for each in found[:MAX_SHOWN]:
        yield Finding(check, each.name, each.reason, advice.format(each.name), hint=True)
    if more := found[MAX_SHOWN:]:
        names = ", ".join(each.name for each in more[:3])
        yield Finding(
            check,
            f"{names}, …",
            f"{counted(len(more), f'more {check}')} not used for this time",
            f"the first {MAX_SHOWN} are listed: see to them, and look again",
            hint=True,
        )


def _rows(page_at: Callable[[int], Page[R]]) -> Iterator[R]:
    """Yield the rows of all pages, up to MAX_ROWS."""
    for offset in range(0, MAX_ROWS, PAGE):
        page = page_at(offset)
        yield from page.rows
        if len(page.rows) < PAGE:
            return


def _topics(
    admin: AdminClient,
    clients: Collection[ClientDescription],
    before_ms: int,
    started_ms: int,
) -> Iterator[Idle]:
    published = {topic for client in clients for topic in client.published_topics}
    asked = 0
    for row in _rows(lambda offset: admin.topic_page(offset=offset, limit=PAGE)):
        counts = row.statistics
        if row.topic in published or counts.members != 0 or counts.messages_in is None:
            continue
        newest_ms = None
        if counts.stored_messages and asked < MAX_ASKED:
            asked += 1
            newest_ms = _newest_ms(admin, row)
        if newest_ms is not None:
            if newest_ms < before_ms:
                yield Idle(row.topic, f"no clients, and no message since {_time(newest_ms)}")
        elif not counts.messages_in and started_ms < before_ms:
            reason = f"no clients, and no message since its brokers started ({_time(started_ms)})"
            yield Idle(row.topic, reason)


def _newest_ms(admin: AdminClient, row: TopicRow) -> int | None:
    """Return the store time of the newest message of a topic, or None if it is unknown."""
    try:
        queues = admin.topic_status(row.topic)
    except MqError:  # it was deleted, or a broker no longer answers
        return None
    return max((queue.latest_timestamp_ms for queue in queues), default=0) or None


def _groups(admin: AdminClient, before_ms: int, started_ms: int) -> Iterator[Idle]:
    asked = 0
    for row in _rows(lambda offset: admin.group_page(offset=offset, limit=PAGE)):
        counts = row.statistics
        if counts.members != 0 or counts.messages_out is None:
            continue
        if counts.lag and asked < MAX_ASKED:
            asked += 1
            oldest_ms = _oldest_ms(admin, row)
            if oldest_ms is not None and oldest_ms < before_ms:
                waiting = counted(counts.lag, "message")
                reason = f"no members, and {waiting} wait, the oldest since {_time(oldest_ms)}"
                yield Idle(row.consumer_group, reason)
        elif not counts.messages_out and started_ms < before_ms:
            reason = f"no members, and it got no message since {_time(started_ms)}"
            yield Idle(row.consumer_group, reason)


def _oldest_ms(admin: AdminClient, row: GroupRow) -> int | None:
    """Return the store time of the oldest message that a group has not consumed.

    Returns None if it is unknown.
    """
    try:
        queues = admin.describe_group(row.consumer_group).queues
    except MqError:  # it was deleted, or a broker no longer answers
        return None
    times = [each.oldest_timestamp_ms for each in queues if each.oldest_timestamp_ms is not None]
    return min(times, default=None)


def _time(timestamp_ms: int) -> str:
    return iso_time(timestamp_ms, milliseconds=False)
