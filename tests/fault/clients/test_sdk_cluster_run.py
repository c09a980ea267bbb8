"""Two brokers and two proxies, of which one each is restarted every minute, by SIGTERM or SIGKILL,
under the official SDKs side by side, whose clients come and go.

Nothing that was acknowledged is lost or comes again, every client goes on by itself, no user sees
an error but those of UNHIDDEN, and the memory of the services does not grow. `--campaign` takes an
hour, or `--minutes`; the short form is one round. A run prints its seed, which chooses who is
restarted when, and how.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from fault.conftest import Campaign
from fault.sdk_churn import Churn, endpoints
from support.processes.service import ServiceProcess
from support.proxy.official_sdk import OfficialSdk, available_sdks
from support.proxy.sdk_cluster import INVISIBLE_S, Cluster, sdk_cluster
from support.proxy.sdk_traffic import (
    Outage,
    Traffic,
    UserError,
    again_without_need,
    all_delivered,
    all_work,
)

pytestmark = pytest.mark.slow

ROUND_S = {False: 5.0, True: 60.0}
DOWN_S = 3.0  # at most, besides the start
BETWEEN_SENDS_S = 0.25
SHORT = ("node", "python")  # the SDKs of the short form
# Private memory of a service, in MiB: the median of the last third of the rounds may be this much
# above that of the first.
MOST_GROWTH = 1.15
SLACK_MIB = 8.0
ROUNDS_OF_A_TREND = 9


class Unhidden(NamedTuple):
    """An error that a user sees because of the SDK: in which calls, by whose restart."""

    languages: tuple[str, ...]  # empty: all
    calls: tuple[str, ...]
    services: tuple[str, ...]
    cause: str


UNHIDDEN = (
    Unhidden(
        (), ("receive", "ack", "start", "close"), ("proxy killed",),
        "no SDK tries a call of a consumer again: one under way fails with its proxy",
    ),
    Unhidden(
        (), ("receive", "ack"), ("broker killed", "broker stopped"),
        "the lease of a message belongs to the broker that holds it; it comes again",
    ),
    Unhidden(
        ("node",), ("send", "receive", "ack", "start", "close"), ("proxy killed", "proxy stopped"),
        "takes one endpoint, and it was restarted",
    ),
    Unhidden(
        ("rust",), ("send", "receive", "ack", "start", "close"), ("proxy killed", "proxy stopped"),
        "asks the endpoint that is away as often as the other, and no call again",
    ),
    Unhidden(("rust",), ("send",), ("broker killed", "broker stopped"), "tries a send once"),
)  # fmt: skip


def hidden(official: OfficialSdk, error: UserError, outages: list[Outage]) -> bool:
    """Whether the SDK could have kept the error from its user."""
    near = {outage.service for outage in outages if outage.touches(error.at, error.at)}
    return not any(
        error.call in known.calls
        and official.language in (known.languages or (official.language,))
        and near.intersection(known.services)
        for known in UNHIDDEN
    )


def private_mib(process: ServiceProcess) -> float:
    """RssAnon: without the pages of mapped files."""
    status = Path(f"/proc/{process.pid}/status").read_text("ascii")
    (kib,) = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    return int(kib) / 1024


@dataclass
class Run:
    cluster: Cluster
    chance: random.Random
    clients: list[Traffic]
    outages: list[Outage] = field(default_factory=list)
    # Of each service, at the end of each round: minutes since the start, MiB.
    memory: defaultdict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    began: float = field(default_factory=time.monotonic)

    def round(self, length_s: float) -> None:
        """Restarts a proxy and a broker, each at some moment of its half of the time."""
        order = [("proxy", self.cluster.proxies), ("broker", self.cluster.brokers)]
        self.chance.shuffle(order)
        for half, (service, processes) in enumerate(order):
            moment = self.began_of_round(length_s) + (half + self.chance.random()) * length_s / 2
            time.sleep(max(0.0, moment - time.monotonic()))
            self.restart(service, self.chance.choice(processes))
        self.sample()

    def began_of_round(self, length_s: float) -> float:
        return self.began + (len(self.outages) // 2) * length_s

    def restart(self, service: str, process: ServiceProcess) -> None:
        killed = self.chance.random() < 0.5
        outage = Outage(f"{service} {'killed' if killed else 'stopped'}", time.time(), 0)
        if killed:
            process.kill()
        else:
            process.stop()
        time.sleep(self.chance.uniform(0, DOWN_S))
        process.start()
        outage.up = time.time()
        all_work(self.clients, outage.up)
        outage.over = time.time()
        self.outages.append(outage)

    def sample(self) -> None:
        named = {
            "namesrv": self.cluster.namesrv,
            **{f"broker {n}": one for n, one in enumerate(self.cluster.brokers, 1)},
            **{f"proxy {n}": one for n, one in enumerate(self.cluster.proxies, 1)},
        }
        minutes = (time.monotonic() - self.began) / 60
        for name, process in named.items():
            self.memory[name].append((minutes, private_mib(process)))


def growth(samples: list[tuple[float, float]]) -> tuple[float, float]:
    """The medians of the first and of the last third, in MiB."""
    third = max(1, len(samples) // 3)
    first, last = samples[:third], samples[-third:]
    return statistics.median(mib for _, mib in first), statistics.median(mib for _, mib in last)


def newest_of_each(campaign: Campaign) -> list[OfficialSdk]:
    found = {sdk.language: sdk for sdk in reversed(available_sdks(every=campaign.long))}
    return [sdk for sdk in found.values() if campaign.long or sdk.language in SHORT]


def test_sdks_in_a_cluster_of_restarts(tmp_path: Path, campaign: Campaign) -> None:
    seed = campaign.seed if campaign.seed is not None else int(campaign.long and time.time())
    campaign.report(f"--fault-seed {seed}")
    chance = random.Random(seed)
    lease = f"--set=defaultInvisibleTimeMills={INVISIBLE_S * 1_000}"
    with sdk_cluster(tmp_path, lease, brokers=2) as cluster, ExitStack() as stack:
        reported = endpoints(newest_of_each(campaign), cluster)
        clients = [
            stack.enter_context(Traffic(sdk, cluster, ends, between_sends_s=BETWEEN_SENDS_S))
            for sdk, ends in reported.items()
        ]
        all_work(clients, 0)
        churn = stack.enter_context(Churn(reported, cluster, random.Random(seed)))
        run = Run(cluster, chance, clients)
        length_s = ROUND_S[campaign.long]
        while True:
            run.round(length_s)
            if time.monotonic() - run.began >= campaign.minutes * 60:
                break
        churn.finish()
        all_delivered(clients)
        time.sleep(INVISIBLE_S + 2)  # what was forgotten would come again meanwhile
        report(campaign, run, churn)
        judge(run, churn)


def report(campaign: Campaign, run: Run, churn: Churn) -> None:
    for traffic in run.clients:
        again = {
            kind: len(got) - len({delivery.body for delivery in got})
            for kind, got in traffic.consumed.items()
        }
        errors = Counter(error.call for error in traffic.errors)
        campaign.report(
            f"{traffic.name}: {len(traffic.stored)} sends acknowledged, all delivered, again:"
            f" {again}; calls that failed: {dict(errors)}"
        )
    again_in_churn = len(churn.delivered) - len(set(churn.delivered))
    errors = Counter(f"{sdk} {one.call}" for sdk, found in churn.errors.items() for one in found)
    campaign.report(
        f"clients that came and went: {churn.visits}, {len(churn.stored)} sends acknowledged, all"
        f" delivered, again: {again_in_churn}; calls that failed: {dict(errors)}"
    )
    for service in ("proxy", "broker"):
        lasted = [one.over - one.began for one in run.outages if one.service.startswith(service)]
        campaign.report(
            f"{len(lasted)} restarts of a {service}; until every client was seen to work:"
            f" {statistics.median(lasted):.1f} s (median), {max(lasted):.1f} s (longest)"
        )
    for name, samples in run.memory.items():
        first, last = growth(samples)
        campaign.report(
            f"{name}: {first:.1f} MiB in the first third of {len(samples)} rounds, {last:.1f} MiB"
            " in the last"
        )


def judge(run: Run, churn: Churn) -> None:
    seen = [(traffic.official, error) for traffic in run.clients for error in traffic.errors]
    seen += [(sdk, error) for sdk, found in churn.errors.items() for error in found]
    beyond = [f"{sdk} {error}" for sdk, error in seen if hidden(sdk, error, run.outages)]
    assert beyond == []
    for traffic in run.clients:
        assert not traffic.ended, f"a process of {traffic.name} died"
        assert again_without_need(traffic, run.outages) == []
    for name, samples in run.memory.items():
        first, last = growth(samples)
        if len(samples) >= ROUNDS_OF_A_TREND:
            assert last <= MOST_GROWTH * first + SLACK_MIB, f"{name} grew"
