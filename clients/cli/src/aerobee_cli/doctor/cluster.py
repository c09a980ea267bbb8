"""Check a cluster like a classic client: the name servers, then the brokers that they know."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aerobee_cli.doctor import checks, unused
from aerobee_cli.doctor.broker_group import BrokerGroup, look_at
from aerobee_cli.doctor.checks import Answer, Finding
from aerobee_cli.errors import CommandError
from aerobee_cli.output import counted
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import MqError
from aerobee_wire.version import VERSION

if TYPE_CHECKING:
    from aerobee_client import AdminClient, Credentials
    from aerobee_client.admin.descriptions import AwayProxy, BrokerConflict, ClientDescription

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
                found.findings += unused.look(admin, statuses, clients, idle_ms)
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
