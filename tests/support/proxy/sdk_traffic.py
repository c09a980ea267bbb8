"""An official SDK that sends, consumes by a push consumer where it has one, and receives by a
simple one, all the time; what it was told; and whether that was kept through outages.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from support.clock.polling import until_sync
from support.proxy.official_sdk import OfficialSdk, Sdk, SdkError
from support.proxy.sdk_cluster import ALL, INVISIBLE_S, Cluster

BETWEEN_SENDS_S = 0.05
RECOVERY_S = 60.0  # or it is stuck
# After a delivery, for this long, its acknowledgement may be on its way.
ON_ITS_WAY_S = 5.0


class Delivery(NamedTuple):
    body: str
    attempt: int
    at: float  # seconds since the epoch


@dataclass
class Outage:
    """One kill, in seconds since the epoch: from it until all clients were seen to work again."""

    service: str
    began: float
    up: float  # the process serves again
    over: float = 0.0

    def touches(self, first: float, last: float) -> bool:
        return first <= self.over + ON_ITS_WAY_S and last >= self.began - ON_ITS_WAY_S


class UserError(NamedTuple):
    """What a call of the SDK raised."""

    call: str  # "send", "receive" or "ack"
    at: float  # seconds since the epoch
    text: str


class Traffic:
    """What one SDK does all the time, and what it was told.

    `proxies`: the endpoints of its clients; by default the first proxy's. With `roots` it speaks
    TLS. `between_sends_s`: for a long run, fewer sends.
    """

    def __init__(
        self,
        official: OfficialSdk,
        cluster: Cluster,
        proxies: str = "",
        roots: Path | None = None,
        between_sends_s: float = BETWEEN_SENDS_S,
    ) -> None:
        self.official = official
        self.name = f"{official}{' in TLS' if roots else ''}"
        self.topic = cluster.topic()
        self._parked = cluster.topic()
        self._groups = [cluster.group(retry_max_times=1_000) for _ in range(3)]
        self._between_sends_s = between_sends_s
        self._stack = ExitStack()
        # Where an SDK does one thing at a time, who sends must not wait for who receives.
        endpoints = proxies or cluster.proxy.address
        processes = [
            self._stack.enter_context(Sdk(official, endpoints, cluster.home, roots=roots))
            for _ in range(1 if official.side_by_side else 3)
        ]
        self._producer, self._push, self._simple = processes * (3 // len(processes))
        self.stored: dict[str, tuple[float, float]] = {}  # body → sent from when to when
        self.received: list[Delivery] = []  # by the simple consumer
        self.acknowledged: dict[str, float] = {}  # body → when the answer was there
        self.errors: list[UserError] = []
        self._sending = threading.Event()
        self._sending.set()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._receiver = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Self:
        self._producer.do("producer", id="p", topics=[self.topic, self._parked])
        push, simple, parked = self._groups
        if self.official.can_push:
            self._push.do("push", id="c", group=push, subscriptions={self.topic: ALL})
        self._consume("s", simple, self.topic)
        self._consume("k", parked, self._parked)
        self._sender.start()
        self._receiver.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._sending.clear()
        self._stack.close()
        self._sender.join()
        self._receiver.join()

    @property
    def pushed(self) -> list[Delivery]:
        """What the listener of the push consumer got."""
        return self._pushed_since(0.0)

    @property
    def consumed(self) -> dict[str, list[Delivery]]:
        """What each kind of consumer got that the SDK has."""
        by_push = {"push": self.pushed} if self.official.can_push else {}
        return {**by_push, "simple": self.received}

    @property
    def failed_sends(self) -> list[float]:
        """When. The messages may be stored or not."""
        return [error.at for error in self.errors if error.call == "send"]

    @property
    def ended(self) -> bool:
        """Whether a process of the SDK died."""
        return any(process.ended for process in (self._producer, self._push, self._simple))

    def end_of_sending(self) -> None:
        self._sending.clear()
        self._sender.join()

    def works_since(self, moment: float) -> bool:
        """Whether some of what was sent after the moment was stored and reached each consumer.
        Raises AssertionError when not."""
        sent = reversed(self.stored.copy().items())
        new = {body for body, _ in itertools.takewhile(lambda item: item[1][0] > moment, sent)}
        fresh = itertools.takewhile(lambda one: one.at > moment, reversed(self.received.copy()))
        found = {"simple": new & {delivery.body for delivery in fresh}}
        if self.official.can_push:
            found["push"] = new & {delivery.body for delivery in self._pushed_since(moment)}
        assert all(found.values()), f"{len(new)} stored, of them {found}"
        return True

    def has_all(self) -> bool:
        """Whether all that was stored reached each consumer. Raises AssertionError when not."""
        for kind, got in self.consumed.items():
            missing = self.stored.keys() - {delivery.body for delivery in got}
            assert not missing, f"{len(missing)} of {len(self.stored)} not to {kind}: {missing}"
        return True

    def park(self, count: int) -> set[str]:
        """Sends messages that lie there until they are fetched; returns their bodies."""
        bodies = {f"{self.name} parked {number}" for number in range(count)}
        for body in bodies:
            self._producer.do("send", id="p", topic=self._parked, body=body)
        return bodies

    def fetch(self) -> set[str]:
        """The bodies of parked messages that one receive finds, acknowledged."""
        found = self._simple.do("receive", id="k", most=16, invisible_s=INVISIBLE_S)
        for message in found:
            self._simple.do("ack", id="k", message_id=message["message_id"])
        return {message["body"] for message in found}

    def _consume(self, client: str, group: str, topic: str) -> None:
        subscriptions = {topic: ALL}
        self._simple.do("simple", id=client, group=group, subscriptions=subscriptions, await_s=5)

    def _pushed_since(self, moment: float) -> list[Delivery]:
        return [
            Delivery(event["body"], event["attempt"], event["at"])
            for event in self._push.events("delivered", "c", moment)
        ]

    def _send(self) -> None:
        number = 0
        while self._sending.is_set():
            number += 1
            body, began = f"{self.name} {number}", time.time()
            try:
                self._producer.do("send", id="p", topic=self.topic, body=body)
                self.stored[body] = (began, time.time())
            except SdkError as error:
                self.errors.append(UserError("send", time.time(), str(error)))
            time.sleep(self._between_sends_s)

    def _receive(self) -> None:
        while not self._simple.ended:
            call = "receive"
            try:
                for message in self._simple.do("receive", id="s", most=16, invisible_s=INVISIBLE_S):
                    body = message["body"]
                    self.received.append(Delivery(body, message["attempt"], message["at"]))
                    call = "ack"
                    self._simple.do("ack", id="s", message_id=message["message_id"])
                    self.acknowledged[body] = time.time()
            except SdkError as error:
                if not self._simple.ended:
                    self.errors.append(UserError(call, time.time(), str(error)))
                    time.sleep(0.1)


def again_without_need(traffic: Traffic, outages: Sequence[Outage]) -> list[Delivery]:
    """Deliveries of what had been acknowledged.

    By the simple consumer: after the answer. By the push consumer, whose acknowledgements nobody
    sees: after a delivery that no outage was near. What an SDK sent twice, because the first answer
    was lost, is there twice.
    """
    maybe_twice = {
        body
        for body, (began, ended) in traffic.stored.items()
        if any(outage.touches(began, ended) for outage in outages)
    }
    wrong = [
        delivery
        for delivery in traffic.received
        if delivery.at > traffic.acknowledged.get(delivery.body, delivery.at)
        and (delivery.attempt > 1 or delivery.body not in maybe_twice)
    ]
    seen: dict[str, float] = {}
    for delivery in sorted(traffic.pushed, key=lambda delivery: delivery.at):
        if (
            delivery.body in seen
            and not any(
                outage.touches(seen[delivery.body], seen[delivery.body]) for outage in outages
            )
            and (delivery.attempt > 1 or delivery.body not in maybe_twice)
        ):
            wrong.append(delivery)
        seen[delivery.body] = delivery.at
    return wrong


def all_work(clients: Iterable[Traffic], since: float) -> None:
    """Waits until what each of them sent after the moment was stored and reached its consumers."""
    for traffic in clients:
        until_sync(
            lambda traffic=traffic: traffic.works_since(since),  # type: ignore[misc]
            traffic.name,
            timeout_s=RECOVERY_S,
        )


def all_delivered(clients: Iterable[Traffic]) -> None:
    """Ends their sending, and waits until all that was stored reached their consumers."""
    for traffic in clients:
        traffic.end_of_sending()
        until_sync(traffic.has_all, f"all of {traffic.name}", timeout_s=RECOVERY_S)
