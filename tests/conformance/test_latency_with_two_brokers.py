"""Row C6: whether a second broker makes the receives of the official SDKs slower.

Timed, so that nothing else should run: `make conformance` runs it alone, after the rest.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.clock.polling import until_sync
from support.proxy.official_sdk import OfficialSdk, Sdk, SdkError, official_sdks
from support.proxy.sdk_cluster import ALL, INVISIBLE_S, Cluster, sdk_cluster

pytestmark = pytest.mark.slow

PAIRS = 100  # of messages, one to a topic on one broker and one to a topic on two
MOST_WITH_TWO = 1.2  # times as long as with one


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.config.getoption("--every-sdk")
    metafunc.parametrize("sdk", official_sdks() if every else [], ids=str)


class Latencies:
    """What one SDK sends to a topic, and how long until its simple consumer had it, in seconds."""

    def __init__(self, producer: Sdk, consumer: Sdk, client: str, cluster: Cluster, topic: str):
        self._producer = producer
        self._consumer = consumer
        self._client = client
        self._topic = topic
        self._sent: dict[str, float] = {}
        self.seconds: list[float] = []
        consumer.do(
            "simple", id=client, group=cluster.group(), subscriptions={topic: ALL}, await_s=10
        )
        threading.Thread(target=self._receive, daemon=True).start()

    def measure(self) -> None:
        """Sends one message and waits for it."""
        number = len(self.seconds)
        self._sent[str(number)] = time.time()
        self._producer.do("send", id="p", topic=self._topic, body=str(number))
        until_sync(lambda: len(self.seconds) > number, f"message {number} of {self._client}")

    def _receive(self) -> None:
        while not self._consumer.ended:
            try:
                found: list[Any] = self._consumer.do(
                    "receive", id=self._client, most=1, invisible_s=INVISIBLE_S
                )
                for message in found:
                    self.seconds.append(message["at"] - self._sent[message["body"]])
                    self._consumer.do("ack", id=self._client, message_id=message["message_id"])
            except SdkError:
                assert self._consumer.ended, "nothing fails here"


def test_a_second_broker_makes_no_receive_slower(
    tmp_path: Path, sdk: OfficialSdk, record_property: Callable[[str, object], None]
) -> None:
    """In turns, so that what else the machine does weighs on both."""
    with sdk_cluster(tmp_path, brokers=2) as cluster, ExitStack() as stack:
        processes = [
            stack.enter_context(Sdk(sdk, cluster.proxy.address, tmp_path))
            for _ in range(1 if sdk.side_by_side else 3)
        ]
        producer, one, two = processes * (3 // len(processes))
        topics = cluster.topic(brokers=1), cluster.topic()
        producer.do("producer", id="p", topics=topics)
        with_one = Latencies(producer, one, "one", cluster, topics[0])
        with_two = Latencies(producer, two, "two", cluster, topics[1])
        for _ in range(PAIRS):
            with_one.measure()
            with_two.measure()
    p50 = [statistics.median(each.seconds) * 1_000 for each in (with_one, with_two)]
    reported = f"{sdk}: {p50[0]:.1f} ms with one broker, {p50[1]:.1f} ms with two"
    record_property("send to receive, p50", reported)
    assert p50[1] <= MOST_WITH_TWO * p50[0], reported
