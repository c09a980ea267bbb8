"""What happens to a cluster of two brokers and two proxies while official SDKs send and receive.

A change is made once, to one cluster, with one client of each SDK at work; what it means for each
of them is judged apart. Rows C2 to C5 of the acceptance catalogue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aerobee_client import AdminClient
from support.clock.polling import until_sync
from support.processes.command import aerobee_json
from support.processes.service import ServiceProcess
from support.proxy.official_sdk import OfficialSdk
from support.proxy.sdk_cluster import Cluster
from support.proxy.sdk_traffic import RECOVERY_S, Outage, Traffic, again_without_need

PARKED = 8  # messages that nobody has fetched when their broker dies; the SDKs take turns
# SDKs ask for routes every 30 s, and proxies keep those that they gave for up to 10 s.
ROUTE_REFRESH_S = 45.0


@dataclass(frozen=True)
class Way:
    """An SDK, in TLS or in plaintext."""

    sdk: OfficialSdk
    tls: bool

    def __str__(self) -> str:
        return f"{self.sdk}-{'tls' if self.tls else 'plaintext'}"

    @property
    def has_both_proxies(self) -> bool:
        """Else it is given the second one alone."""
        return self.sdk.takes_several_proxies(tls=self.tls)


@dataclass
class Stage:
    """A cluster under traffic, and which client failed a check, with the first reason.

    `added`: a broker without queues, not running yet.
    """

    cluster: Cluster
    added: ServiceProcess
    clients: dict[Way, Traffic]
    failures: dict[Way, BaseException] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)

    def check(
        self, check: Callable[[Traffic], object], what: str, timeout_s: float = RECOVERY_S
    ) -> None:
        """Waits for each client until the check says true."""
        deadline = time.monotonic() + timeout_s
        for way, traffic in self.clients.items():
            left_s = max(0.0, deadline - time.monotonic())
            try:
                until_sync(lambda traffic=traffic: check(traffic), what, timeout_s=left_s)  # type: ignore[misc]
            except Exception as error:
                self.failures.setdefault(way, error)

    def check_work(self, since: float) -> None:
        self.check(lambda traffic: traffic.works_since(since), "works")

    def check_no_failed_send(self, since: float) -> None:
        """By SDKs that try again."""

        def none(traffic: Traffic) -> bool:
            if traffic.official.inability("", "retry"):
                return True
            failed = [one for one in traffic.errors if one.call == "send" and one.at >= since]
            assert not failed, f"{len(failed)} sends failed: {failed[0].text}"
            return True

        self.check(none, "no send fails", timeout_s=0)

    def check_nothing_came_again(self) -> None:
        """Of what was acknowledged."""

        def none(traffic: Traffic) -> bool:
            assert again_without_need(traffic, self.outages) == []
            return True

        self.check(none, "nothing comes again", timeout_s=0)


Change = Callable[[Stage], None]


def c2_one_of_two_brokers_is_killed(stage: Stage) -> None:
    """Sends go on without an error, and what lies on the broker comes when it is back."""
    parked = {traffic.name: traffic.park(PARKED) for traffic in stage.clients.values()}
    down = stage.cluster.brokers[1]
    began = time.time()
    down.kill()
    stage.check_work(time.time())
    fetched: dict[str, set[str]] = {name: set() for name in parked}

    def fetch(traffic: Traffic) -> set[str]:
        new = traffic.fetch()
        fetched[traffic.name] |= new
        return new

    stage.check(fetch, "messages of the broker that is left")
    for traffic in stage.clients.values():
        assert fetched[traffic.name] < parked[traffic.name], "some are on the broker that is away"
    down.restart()
    outage = Outage("broker", began, time.time())
    stage.check_work(outage.up)
    outage.over = time.time()
    stage.outages.append(outage)

    def has_all(traffic: Traffic) -> bool:
        fetch(traffic)
        return fetched[traffic.name] == parked[traffic.name]

    stage.check(has_all, "messages of the broker that is back")
    stage.check_no_failed_send(began)


def c3_one_of_two_proxies_is_killed(stage: Stage) -> None:
    """Clients that know both go on by the other one, without a send that fails."""
    down = stage.cluster.proxies[0]
    began = time.time()
    down.kill()
    stage.check_work(time.time())
    down.restart()
    outage = Outage("proxy", began, time.time())
    stage.check_work(outage.up)
    outage.over = time.time()
    stage.outages.append(outage)
    stage.check_no_failed_send(began)


def c4_a_broker_is_added(stage: Stage) -> None:
    """Its queues get messages, and those are received, once the SDKs have asked for routes."""
    stage.added.start()
    began = time.time()
    with AdminClient(stage.cluster.namesrv.address) as admin:
        for traffic in stage.clients.values():
            until_sync(lambda topic=traffic.topic: admin.rebalance_topic(topic), "it is registered")  # type: ignore[misc]

    def taken(traffic: Traffic) -> bool:
        time.sleep(0.5)
        return "broker-c" in stage.cluster.takers(traffic.topic)

    stage.check(taken, "the added broker takes messages", timeout_s=ROUTE_REFRESH_S)
    stage.check_work(time.time())
    stage.check_no_failed_send(began)


def c5_a_broker_is_drained_and_removed(stage: Stage) -> None:
    """No send fails meanwhile, and nothing is lost with it."""
    leaving, began = stage.cluster.brokers[1], time.time()
    drain = ("broker", "drain", "broker-b")
    aerobee_json(*drain, namesrv=stage.cluster.namesrv.address)
    aerobee_json(*drain, "--wait", "--timeout", "60s", namesrv=stage.cluster.namesrv.address)
    leaving.stop()
    outage = Outage("broker", began, time.time())
    stage.check_work(outage.up)
    outage.over = time.time()
    stage.outages.append(outage)
    for traffic in stage.clients.values():
        traffic.end_of_sending()
    stage.check(Traffic.has_all, "all that was stored was delivered")
    stage.check_no_failed_send(began)


# In this order; the last one ends the sending.
CHANGES: tuple[Change, ...] = (
    c2_one_of_two_brokers_is_killed,
    c3_one_of_two_proxies_is_killed,
    c4_a_broker_is_added,
    c5_a_broker_is_drained_and_removed,
)


def in_turns(ways: Iterable[Way]) -> list[list[Way]]:
    """The ways of groups that are at work at the same time: at most one of each language."""
    turns: list[list[Way]] = []
    for way in ways:
        for turn in turns:
            if all(other.sdk.language != way.sdk.language for other in turn):
                turn.append(way)
                break
        else:
            turns.append([way])
    return turns
