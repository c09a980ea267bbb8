"""Lite push consumers of the official SDKs beside a broker group whose master is killed.

Three members, elected at etcd, and two proxies. Each SDK sends to lite topics, and two consumers of
one group share them. The master gets SIGKILL at a moment that the seed chooses; another member
leads, and the one that was killed comes back as its slave. What the SDK was told is stored is
delivered, in order in each lite topic; what was consumed in peace does not come again; what a
listener always fails is a dead letter with its lite topic; and every client goes on by itself.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fault.conftest import Campaign
from fault.sdk_churn import endpoints
from support.clock.polling import until_sync
from support.etcd.etcd_process import etcd_members
from support.lite.sdk_traffic import RECOVERY_S, LiteTraffic, all_work, check
from support.processes.broker_group import BrokerGroup
from support.processes.service import namesrv_process, proxy_process
from support.proxy.official_sdk import available_sdks
from support.proxy.sdk_cluster import INVISIBLE_S, Cluster
from support.proxy.sdk_traffic import Outage

pytestmark = pytest.mark.slow

KILLS = {False: 1, True: 10}
PEACE_S = (0.0, 12.0)  # between two kills; an acknowledgement is on its way for up to 5 s
MEMBERS = 3


@contextmanager
def replicated_cluster(data: Path) -> Iterator[tuple[Cluster, BrokerGroup]]:
    """The cluster has the first master for its broker: topics and groups are created there."""
    with ExitStack() as stack:
        [etcd] = stack.enter_context(etcd_members(data))
        namesrv = stack.enter_context(namesrv_process(data / "namesrv"))
        group = BrokerGroup(data / "group", namesrv.address, stack, first=1)
        members = group.add_all(
            MEMBERS,
            *("brokerRole=SYNC_MASTER", f"totalReplicas={MEMBERS}"),
            *(f"etcdEndpoints={etcd.endpoint}", "etcdLeaseTtl=2"),
        )
        master = group.until_led()
        group.until_in_sync(master, *(each for each in members if each is not master))
        lease = f"--set=defaultInvisibleTimeMills={INVISIBLE_S * 1_000}"
        proxies = [stack.enter_context(proxy_process(namesrv.address, lease)) for _ in range(2)]
        yield Cluster(namesrv, [master.process], proxies, data), group


def fail_over(group: BrokerGroup, clients: list[LiteTraffic]) -> Outage:
    """Kills the master, waits until everything works with another one, and has it back in sync."""
    old = group.until_led()
    began = time.time()
    old.process.kill()
    new = group.until_led(old)
    outage = Outage("master", began, time.time())
    all_work(clients, outage.up)
    outage.over = time.time()
    old.start()
    group.until_in_sync(new, *(each for each in group.members if each is not new))
    return outage


def test_lite_consumers_go_on_at_the_next_master(tmp_path: Path, campaign: Campaign) -> None:
    seed = campaign.seed if campaign.seed is not None else int(campaign.long and time.time())
    campaign.report(f"--fault-seed {seed}")
    chance = random.Random(seed)
    sdks = [sdk for sdk in available_sdks() if sdk.inability("", "lite") is None]
    outages: list[Outage] = []
    with replicated_cluster(tmp_path) as (cluster, group), ExitStack() as stack:
        clients = [
            stack.enter_context(LiteTraffic(sdk, cluster, ends, random.Random(f"{seed} {sdk}")))
            for sdk, ends in endpoints(sdks, cluster).items()
        ]
        all_work(clients, 0)
        for _ in range(KILLS[campaign.long]):
            time.sleep(chance.uniform(*PEACE_S))
            outages.append(fail_over(group, clients))
        for traffic in clients:
            traffic.end_of_sending()
            until_sync(traffic.has_all, f"all of {traffic.name}", timeout_s=RECOVERY_S)
            until_sync(traffic.has_settled, traffic.name, timeout_s=RECOVERY_S)
        time.sleep(INVISIBLE_S + 2)  # what was forgotten would come again meanwhile
        lasted = [outage.over - outage.began for outage in outages]
        campaign.report(
            f"{len(lasted)} kills of a master; until every lite topic of every client was seen to"
            f" work: {statistics.median(lasted):.1f} s (median), {max(lasted):.1f} s (longest)"
        )
        for traffic in clients:
            campaign.report(traffic.figures())
            check(traffic, outages)
