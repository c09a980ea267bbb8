"""A proxy over two broker processes: a receive wakes for either, and one that is killed is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from support.processes.service import ServiceProcess, namesrv_and_brokers, proxy_process
from support.proxy.client import Client

MIXED = "--set=enableMixedMessageType=true"
NAMES = ("broker-a", "broker-b")
POLL_S = 20  # that of the test client is far shorter
SOON_S = 5  # on a busy machine


class Cluster:
    def __init__(self, brokers: dict[str, ServiceProcess], client: Client) -> None:
        self.brokers = brokers
        self.client = client


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data: Path = tmp_path_factory.mktemp("cluster")
    with namesrv_and_brokers(data, MIXED, names=NAMES) as (namesrv, brokers):
        with proxy_process(namesrv.address) as proxy, Client(proxy.address) as client:
            yield Cluster(brokers, client)
        assert not proxy.events("rpc_failed") and not proxy.events("background_work_failed")


def queue_at(topic: str, name: str) -> d.MessageQueue:
    return d.MessageQueue(topic=d.Resource(name=topic), broker=d.Broker(name=name), id=-1)


def test_receive_that_waits_gets_messages_of_either(cluster: Cluster) -> None:
    """Whichever it names, and whichever broker the proxy stores the message at."""
    topic = "either"
    cluster.client.queue(topic)
    with ThreadPoolExecutor(1) as pool:
        for number in range(12):
            named = NAMES[number % 3 % 2]
            waiting = pool.submit(cluster.client.receive, queue_at(topic, named), poll_s=POLL_S)
            time.sleep(0.05)  # mostly it waits by now; if not, the test is about less
            sent = cluster.client.send(topic, b"%d" % number)
            assert sent.status.code == Code.OK
            [message] = waiting.result(timeout=SOON_S)
            assert message.body == b"%d" % number
            assert cluster.client.ack(message) == Code.OK


def test_broker_that_is_killed_is_left_out_and_comes_back(cluster: Cluster) -> None:
    topic = "killed"
    cluster.client.queue(topic)
    for number in range(8):
        cluster.client.send(topic, b"%d" % number)
    found: list[d.Message] = []
    while len(found) < 8:
        found += cluster.client.receive(queue_at(topic, NAMES[0]))
    cluster.brokers["broker-b"].kill()
    codes = [cluster.client.ack(message) for message in found]
    assert sorted(set(codes)) == [Code.OK, Code.HA_NOT_AVAILABLE]
    while cluster.client.send(topic, b"there").status.code != Code.OK:
        pass  # the send that finds the broker away
    [message] = cluster.client.receive(queue_at(topic, "broker-b"), poll_s=POLL_S)
    assert message.body == b"there"
    assert cluster.client.ack(message) == Code.OK
    cluster.brokers["broker-b"].restart()
    again = [cluster.client.ack(message) for message in found]
    assert set(again) == {Code.OK}
