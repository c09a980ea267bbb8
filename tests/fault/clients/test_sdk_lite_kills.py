"""Row L19: lite push consumers of the official SDKs while brokers and proxies are killed.

Two brokers and two proxies, of which one at a time gets SIGKILL at a moment that the seed chooses,
and starts again after a while; of a broker, some of the files that are derived from the log are
lost or torn meanwhile. Each SDK sends to lite topics, and two consumers of one group share them.
What the SDK was told is stored is delivered, in order in each lite topic; what was consumed in
peace does not come again; what a listener always fails is a dead letter with its lite topic; and
every client goes on by itself. Only with `--campaign`; `--fault-seed` chooses the same again.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from fault.conftest import Campaign
from fault.sdk_churn import endpoints
from support.clock.polling import until_sync
from support.lite.sdk_traffic import (
    RECOVERY_S,
    LiteTraffic,
    all_work,
    check,
)
from support.processes.service import ServiceProcess
from support.proxy.official_sdk import available_sdks
from support.proxy.sdk_cluster import INVISIBLE_S, Cluster, sdk_cluster
from support.proxy.sdk_traffic import Outage

pytestmark = pytest.mark.slow

KILLS = 16
PEACE_S = (0.0, 12.0)  # between two kills; an acknowledgement is on its way for up to 5 s
DOWN_S = 3.0  # at most, besides the start
DERIVED = ("lite", "liteOffsets", "consumequeue")


def damage(store: Path, chance: random.Random) -> str:
    """Loses or tears one derived file of a broker that is down; "": none."""
    assert store.is_dir()
    files = sorted(
        path
        for part in DERIVED
        for path in (store / part, *(store / part).rglob("*"))
        if path.is_file()
    )
    if chance.random() < 0.3:
        return ""
    chosen = chance.choice(files)
    if chance.random() < 0.5:
        chosen.unlink()
        return f"lost {chosen.relative_to(store)}"
    with chosen.open("r+b") as file:
        file.truncate(chance.randrange(chosen.stat().st_size + 1))
    return f"tore {chosen.relative_to(store)}"


def kill(cluster: Cluster, clients: list[LiteTraffic], chance: random.Random) -> tuple[Outage, str]:
    """Kills one process, starts it again and waits until everything works."""
    service, processes = chance.choice([("broker", cluster.brokers), ("proxy", cluster.proxies)])
    number = chance.randrange(len(processes))
    process: ServiceProcess = processes[number]
    began = time.time()
    process.kill()
    damaged = (
        damage(cluster.home / f"broker-{'ab'[number]}" / "broker" / "store", chance)
        if service == "broker"
        else ""
    )
    time.sleep(chance.uniform(0, DOWN_S))
    process.start()
    outage = Outage(service, began, time.time())
    all_work(clients, outage.up)
    outage.over = time.time()
    return outage, damaged


def test_lite_consumers_go_on_after_every_kill(tmp_path: Path, campaign: Campaign) -> None:
    if not campaign.long:
        pytest.skip("ten minutes, with --campaign")
    seed = campaign.seed if campaign.seed is not None else int(time.time())
    campaign.report(f"--fault-seed {seed}")
    chance = random.Random(seed)
    sdks = [sdk for sdk in available_sdks(every=True) if sdk.inability("", "lite") is None]
    outages: list[Outage] = []
    done: Counter[str] = Counter()
    # So that what was under way when a proxy died comes again soon.
    lease = ("--set", f"defaultInvisibleTimeMills={INVISIBLE_S * 1_000}")
    with sdk_cluster(tmp_path, *lease, brokers=2) as cluster, ExitStack() as stack:
        clients = [
            stack.enter_context(LiteTraffic(sdk, cluster, ends, random.Random(f"{seed} {sdk}")))
            for sdk, ends in endpoints(sdks, cluster).items()
        ]
        all_work(clients, 0)
        for _ in range(KILLS):
            time.sleep(chance.uniform(*PEACE_S))
            outage, damaged = kill(cluster, clients, chance)
            outages.append(outage)
            done[damaged.split()[0] if damaged else "whole"] += outage.service == "broker"
        for traffic in clients:
            traffic.end_of_sending()
            until_sync(traffic.has_all, f"all of {traffic.name}", timeout_s=RECOVERY_S)
            until_sync(traffic.has_settled, traffic.name, timeout_s=RECOVERY_S)
        time.sleep(INVISIBLE_S + 2)  # what was forgotten would come again meanwhile
        report(campaign, clients, outages, done)
        for traffic in clients:
            check(traffic, outages)


def report(
    campaign: Campaign, clients: list[LiteTraffic], outages: list[Outage], done: Counter[str]
) -> None:
    for service in ("proxy", "broker"):
        lasted = [outage.over - outage.began for outage in outages if outage.service == service]
        if lasted:
            campaign.report(
                f"{len(lasted)} kills of a {service}; until every lite topic of every client was"
                f" seen to work: {statistics.median(lasted):.1f} s (median), {max(lasted):.1f} s"
                " (longest)"
            )
    campaign.report(f"derived files of the brokers that were killed: {dict(done)}")
    for traffic in clients:
        campaign.report(traffic.figures())
