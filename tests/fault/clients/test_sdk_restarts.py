"""Row F26: the official SDKs while the proxy, or the broker, is killed and started again.

Each SDK sends all the time, consumes by a push consumer where it has one, and receives and
acknowledges by a simple consumer. Whatever gets SIGKILL: what the SDK was told is stored is
delivered, what it was told is acknowledged does not come again, and every client goes on by itself.
`--campaign` kills each 20 times under all versions and prints the longest time without a delivery.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from fault.conftest import Campaign
from support.processes.service import ServiceProcess
from support.proxy.official_sdk import available_sdks
from support.proxy.sdk_cluster import INVISIBLE_S, Cluster, sdk_cluster
from support.proxy.sdk_traffic import (
    Delivery,
    Outage,
    Traffic,
    again_without_need,
    all_delivered,
    all_work,
)

pytestmark = pytest.mark.slow

KILLS = {False: 1, True: 20}  # of each service, in the short form and in the campaign
BETWEEN_KILLS_S = 1.0  # of undisturbed work


def longest_gap_s(deliveries: Iterable[Delivery], outage: Outage) -> float:
    """Between two deliveries, from shortly before the kill until all was well."""
    moments = sorted(delivery.at for delivery in deliveries)
    before = max((at for at in moments if at < outage.began), default=outage.began)
    near = [at for at in moments if before <= at <= outage.over]
    return max((b - a for a, b in itertools.pairwise(near)), default=0.0)


def kill(cluster: Cluster, service: str, clients: Sequence[Traffic]) -> Outage:
    """Kills it, starts it again and waits until everything works."""
    process: ServiceProcess = getattr(cluster, service)
    began = time.time()
    process.kill()
    process.restart()
    outage = Outage(service, began, time.time())
    all_work(clients, outage.up)
    outage.over = time.time()
    return outage


def test_f26_sdks_go_on_after_every_kill(tmp_path: Path, campaign: Campaign) -> None:
    # So that what was under way when the proxy died comes again as soon as by a simple consumer.
    lease = ("--set", f"defaultInvisibleTimeMills={INVISIBLE_S * 1_000}")
    outages: list[Outage] = []
    sdks = available_sdks(every=campaign.long)
    with sdk_cluster(tmp_path, *lease) as cluster, ExitStack() as stack:
        clients = [stack.enter_context(Traffic(sdk, cluster)) for sdk in sdks]
        all_work(clients, 0)
        for _ in range(KILLS[campaign.long]):
            for service in ("proxy", "broker"):
                time.sleep(BETWEEN_KILLS_S)
                outages.append(kill(cluster, service, clients))
        all_delivered(clients)
        time.sleep(INVISIBLE_S + 2)  # what was forgotten would come again meanwhile
        for traffic in clients:
            assert again_without_need(traffic, outages) == []
        for service in ("proxy", "broker"):
            own = [outage for outage in outages if outage.service == service]
            down = statistics.median(outage.up - outage.began for outage in own)
            for traffic in clients:
                for kind, got in traffic.consumed.items():
                    gaps = [longest_gap_s(got, outage) for outage in own]
                    campaign.report(
                        f"{len(own)} kills of the {service} (down for {down:.1f} s), {traffic.name}"
                        f" {kind}: without a delivery for {statistics.median(gaps):.1f} s (median),"
                        f" {max(gaps):.1f} s (longest)"
                    )
        for traffic in clients:
            again = len(traffic.pushed) - len({delivery.body for delivery in traffic.pushed})
            failed = {
                service: sum(
                    outage.service == service and outage.began <= at <= outage.over
                    for at in traffic.failed_sends
                    for outage in outages
                )
                for service in ("proxy", "broker")
            }
            campaign.report(
                f"{traffic.name}: {len(traffic.stored)} sends acknowledged; all delivered, {again}"
                f" of them twice by the push consumer; sends that failed: {failed}"
            )
