"""The official SDKs while brokers die, join and leave and a proxy dies: no send fails, nothing is
lost, and what was acknowledged does not come again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.processes.command import aerobee, aerobee_json
from support.proxy.official_sdk import OfficialSdk, available_sdks
from support.proxy.sdk_cluster import INVISIBLE_S, Cluster, sdk_broker, sdk_cluster
from support.proxy.sdk_traffic import Outage, Traffic, again_without_need, all_delivered, all_work

pytestmark = pytest.mark.slow


@contextmanager
def busy_cluster(
    home: Path, sdks: Iterable[OfficialSdk], brokers: int
) -> Iterator[tuple[Cluster, list[Traffic]]]:
    """With these SDKs at work."""
    lease = f"--set=defaultInvisibleTimeMills={INVISIBLE_S * 1_000}"
    with sdk_cluster(home, lease, brokers=brokers) as cluster, ExitStack() as stack:
        clients = [stack.enter_context(Traffic(sdk, cluster)) for sdk in sdks]
        all_work(clients, 0)
        yield cluster, clients


def assert_unharmed(clients: list[Traffic], outages: list[Outage]) -> None:
    all_delivered(clients)
    for traffic in clients:
        assert traffic.failed_sends == [], traffic.name
        assert again_without_need(traffic, outages) == []


def test_sends_go_on_while_one_of_two_brokers_is_down(tmp_path: Path) -> None:
    """What lies on it comes when it is back."""
    with busy_cluster(tmp_path, available_sdks(), brokers=2) as (cluster, clients):
        down = cluster.brokers[1]
        began = time.time()
        down.kill()
        all_work(clients, time.time())
        down.restart()
        outage = Outage("broker", began, time.time())
        all_work(clients, outage.up)
        outage.over = time.time()
        assert_unharmed(clients, [outage])


def test_one_broker_joins_and_another_leaves(tmp_path: Path) -> None:
    with busy_cluster(tmp_path, available_sdks(), brokers=1) as (cluster, clients):
        namesrv = cluster.namesrv.address
        with sdk_broker(tmp_path, "broker-b", namesrv):
            for traffic in clients:
                aerobee_json("topic", "rebalance", traffic.topic, namesrv=namesrv)
            all_work(clients, time.time())
            drained = aerobee("broker", "drain", "broker-a", "--wait", namesrv=namesrv)
            assert drained.returncode == 0, drained.stderr
            cluster.broker.stop()
            all_work(clients, time.time())
            assert_unharmed(clients, [])


def test_sdks_that_know_two_proxies_go_on_by_the_other(tmp_path: Path) -> None:
    """They send again what the dead one had taken."""
    able = [sdk for sdk in available_sdks() if not sdk.one_endpoint]
    with busy_cluster(tmp_path, able, brokers=2) as (cluster, clients):
        outages = []
        for proxy in cluster.proxies:
            outage = Outage("proxy", time.time(), 0)
            proxy.kill()
            all_work(clients, time.time())
            proxy.restart()
            outage.up = time.time()
            all_work(clients, outage.up)
            outage.over = time.time()
            outages.append(outage)
        assert_unharmed(clients, outages)
