"""A rolling restart of two brokers and two proxies, each drained first as in Kubernetes: no send of
a classic client or an official SDK fails."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from aerobee_client import AdminClient, Message, Producer
from support.clock.polling import until_sync
from support.processes.service import METRICS, drain, namesrv_process, proxy_process
from support.proxy.official_sdk import newest
from support.proxy.sdk_cluster import Cluster, sdk_broker
from support.proxy.sdk_traffic import Traffic

pytestmark = pytest.mark.slow

SOON_S = 90.0  # SDKs and clients read routes every 30 s


class ClassicTraffic:
    """A producer that sends one message after another until the `with` block ends."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self._namesrv, self._topic = namesrv, topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.stored: Counter[str] = Counter()  # by broker
        self.errors: list[Exception] = []

    def __enter__(self) -> ClassicTraffic:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with Producer(namesrv=self._namesrv) as producer:
            while not self._stopped.wait(0.01):
                try:
                    result = producer.send(Message(self._topic, b"x"))
                    self.stored[result.queue.broker_name] += 1
                except Exception as error:
                    self.errors.append(error)


def until_works(traffic: Traffic) -> None:
    since = time.time()
    until_sync(lambda: traffic.works_since(since), "the SDK sends and receives", timeout_s=SOON_S)


def test_no_send_fails_while_each_process_is_drained_and_restarted(tmp_path: Path) -> None:
    python = newest("python")
    with ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_process(tmp_path))
        brokers = {
            name: stack.enter_context(sdk_broker(tmp_path, name, namesrv.address, *METRICS))
            for name in ("broker-a", "broker-b")
        }
        proxies = [stack.enter_context(proxy_process(namesrv.address, *METRICS)) for _ in range(2)]
        cluster = Cluster(namesrv, list(brokers.values()), proxies, tmp_path)
        topic = cluster.topic()
        endpoints = python.list_of(proxy.address for proxy in proxies)
        classic = stack.enter_context(ClassicTraffic(namesrv.address, topic))
        official = stack.enter_context(Traffic(python, cluster, endpoints))
        until_works(official)
        until_sync(lambda: len(classic.stored) == 2, "the classic client works", timeout_s=SOON_S)
        for name, broker in brokers.items():
            drain(broker)
            stored = classic.stored[name]
            until_works(official)
            assert classic.stored[name] == stored, "the producer has moved"
            broker.restart()
            until_sync(
                lambda name=name, stored=stored: classic.stored[name] > stored,  # type: ignore[misc]
                "the producer has come back",
                timeout_s=SOON_S,
            )
        for proxy in proxies:
            drain(proxy)
            until_works(official)
            proxy.restart()
        official.end_of_sending()
        until_sync(official.has_all, "the SDK has consumed all messages", timeout_s=SOON_S)
        assert official.failed_sends == []
        assert classic.errors == []
        acknowledged = classic.stored.total()  # before the look, because the producer goes on
        with AdminClient(namesrv.address) as admin:
            in_topic = sum(queue.max_offset for queue in admin.topic_status(topic))
        assert in_topic >= acknowledged, "nothing is lost"
