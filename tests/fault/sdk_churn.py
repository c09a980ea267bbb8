"""Clients of official SDKs that come and go, all in one consumer group."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Self

from support.clock.polling import until_sync
from support.proxy.official_sdk import OfficialSdk, Sdk, SdkError
from support.proxy.sdk_cluster import ALL, INVISIBLE_S, Cluster
from support.proxy.sdk_traffic import RECOVERY_S, UserError

MESSAGES = 5  # that each producer sends
STAY_S = (2.0, 10.0)  # at least, at most
BETWEEN_S = 3.0


class Churn:
    """A thread that starts a producer and a consumer of one SDK after another, and ends them in
    order or by SIGKILL. `endpoints`: of each SDK. The same `chance` makes the same choices."""

    def __init__(
        self, endpoints: dict[OfficialSdk, str], cluster: Cluster, chance: random.Random
    ) -> None:
        self.visits: dict[str, int] = {str(sdk): 0 for sdk in endpoints}
        self.stored: set[str] = set()
        self.delivered: list[str] = []
        self.errors: dict[OfficialSdk, list[UserError]] = {sdk: [] for sdk in endpoints}
        self._endpoints = endpoints
        self._cluster = cluster
        self._chance = chance
        self._topic = cluster.topic()
        self._group = cluster.group(retry_max_times=1_000)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def finish(self) -> None:
        """No more visits. Waits until all that was stored was delivered to the group."""
        self._over.set()
        self._thread.join()
        official = next(iter(self._endpoints))
        with Sdk(official, self._endpoints[official], self._cluster.home) as sdk:
            self._simple(sdk)

            def has_all() -> bool:
                self._receive(sdk)
                missing = self.stored.difference(self.delivered)
                assert not missing, f"{len(missing)} of {len(self.stored)} not delivered: {missing}"
                return True

            until_sync(has_all, "all of the churn", timeout_s=RECOVERY_S, retry_on=(SdkError,))

    def _run(self) -> None:
        while not self._over.wait(self._chance.uniform(0, 2 * BETWEEN_S)):
            self._visit(self._chance.choice(list(self._endpoints)))

    def _visit(self, official: OfficialSdk) -> None:
        listens = official.can_push and self._chance.random() < 0.5
        stay_s, killed = self._chance.uniform(*STAY_S), self._chance.random() < 0.5
        self.visits[str(official)] += 1
        call = "start"
        sdk = Sdk(official, self._endpoints[official], self._cluster.home)
        with sdk:
            try:
                self._start(sdk, listens=listens)
                call = "send"
                for number in range(MESSAGES):
                    body = f"{official} {sum(self.visits.values())} {number}"
                    sdk.do("send", id="p", topic=self._topic, body=body)
                    self.stored.add(body)
                call, until = "receive", time.monotonic() + stay_s
                while not listens and time.monotonic() < until:
                    self._receive(sdk)
                call = "close"
                self._over.wait(max(0.0, until - time.monotonic()))
                if not killed:
                    sdk.do("close", id="p")
                    sdk.do("close", id="c")
            except SdkError as error:
                self.errors[official].append(UserError(call, time.time(), str(error)))
        # After the end of the process, because it may acknowledge a message just before its end.
        self.delivered += [event["body"] for event in sdk.events("delivered", "c")]

    def _start(self, sdk: Sdk, *, listens: bool) -> None:
        sdk.do("producer", id="p", topics=[self._topic])
        if listens:
            sdk.do("push", id="c", group=self._group, subscriptions={self._topic: ALL})
        else:
            self._simple(sdk)

    def _simple(self, sdk: Sdk) -> None:
        subscriptions = {self._topic: ALL}
        sdk.do("simple", id="c", group=self._group, subscriptions=subscriptions, await_s=2)

    def _receive(self, sdk: Sdk) -> None:
        for message in sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S):
            self.delivered.append(message["body"])
            sdk.do("ack", id="c", message_id=message["message_id"])


def endpoints(sdks: Sequence[OfficialSdk], cluster: Cluster) -> dict[OfficialSdk, str]:
    """All proxies for those that take several, else the first."""
    return {
        sdk: sdk.list_of(proxy.address for proxy in cluster.proxies)
        if sdk.takes_several_proxies(tls=False)
        else cluster.proxy.address
        for sdk in sdks
    }
