"""An official SDK that sends to lite topics, and two lite push consumers of one group that
subscribe to them and give them up, all the time; what it was told; and whether that was kept
through outages.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

from aerobee_client import AdminClient
from support.clock.polling import until_sync
from support.proxy.official_sdk import OfficialSdk, Sdk, SdkError
from support.proxy.sdk_cluster import Cluster
from support.proxy.sdk_traffic import Outage, UserError

NAMES = tuple(f"device-{number}" for number in range(12))
CONSUMERS = ("c0", "c1")  # the first one keeps its subscription
BETWEEN_SENDS_S = 0.02
BETWEEN_CHANGES_S = 2.0
POISON_EVERY = 40  # messages of a lite topic: one that its listener always fails
MOST_POISON = 400  # numbers of a lite topic that are asked of the listener
# SDKs tell a broker that was away their subscription every 30 s, and Java's starts anew after that.
RECOVERY_S = 90.0


class Sent(NamedTuple):
    name: str
    number: int  # in its lite topic
    began: float  # seconds since the epoch
    ended: float


class LiteTraffic:
    """`chance`: which lite topic gets a message, who gives one up. A body is NAME NUMBER, with the
    word "poison" where the listener always fails; the group has two attempts."""

    def __init__(
        self, official: OfficialSdk, cluster: Cluster, proxies: str, chance: random.Random
    ) -> None:
        self.name = str(official)
        self.official = official
        self.parent = cluster.topic("LITE")
        self.group = cluster.group(
            attributes={"lite.bind.topic": self.parent}, retry_max_times=1, retry_delays_ms=[100]
        )
        self._namesrv = cluster.namesrv.address
        self._chance = chance
        self._stack = ExitStack()
        self._producer, self._consumers = (
            self._stack.enter_context(Sdk(official, proxies, cluster.home)) for _ in range(2)
        )
        self.stored: dict[str, Sent] = {}
        self.errors: list[UserError] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=each, daemon=True) for each in (self._send, self._subscribe)
        ]

    def __enter__(self) -> Self:
        self._producer.do("producer", id="p", topics=[self.parent])
        poison = [body_of(name, number) for name in NAMES for number in poisonous()]
        for client in CONSUMERS:
            how: dict[str, Any] = {"succeed_from": 1_000_000, "only": poison}
            self._consumers.do("lite", id=client, group=self.group, topic=self.parent, **how)
            self._consumers.do("subscribe", id=client, lite=NAMES)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._stack.close()
        for thread in self._threads:
            thread.join()

    def end_of_sending(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def ended(self) -> bool:
        """Whether a process of the SDK died."""
        return self._producer.ended or self._consumers.ended

    @property
    def deliveries(self) -> list[dict[str, Any]]:
        """What the listeners got, as they got it."""
        by_client = (self._consumers.events("delivered", client) for client in CONSUMERS)
        return sorted(itertools.chain(*by_client), key=lambda event: event["at"])

    def works_since(self, moment: float) -> bool:
        """Whether of what was stored after the moment something was delivered of every lite topic.
        Raises AssertionError when not."""
        got = {event["body"] for event in self.deliveries if event["at"] > moment}
        new = {
            sent.name
            for body, sent in self.stored.copy().items()
            if sent.began > moment and body in got
        }
        missing = {*NAMES} - new
        assert not missing, f"{self.name}: nothing new of {sorted(missing)}"
        return True

    def has_all(self) -> bool:
        """Whether all that was stored was delivered. Raises AssertionError when not."""
        missing = self.stored.keys() - {event["body"] for event in self.deliveries}
        assert not missing, f"{self.name}: {len(missing)} of {len(self.stored)}: {sorted(missing)}"
        return True

    def has_settled(self) -> bool:
        """Whether the group has nothing left. Raises AssertionError when not."""
        with AdminClient(self._namesrv) as admin:
            topics = admin.list_lite_topics(self.parent, group=self.group).topics
        left = {each.lite_topic: each.lag for each in topics if each.lag}
        assert not left, f"{self.name}: not settled: {left}"
        return True

    def dead(self) -> Counter[tuple[str, str]]:
        """Lite topic and body of each dead letter."""
        found = Counter[tuple[str, str]]()
        topic = f"%DLQ%{self.group}"
        with AdminClient(self._namesrv) as admin:
            topics = admin.list_topics(include_derived=True)
            if all(each.topic != topic for each in topics):  # its first dead letter creates it
                return found
            for queue in admin.topic_status(topic):
                place, offset = (queue.topic, queue.broker_name, queue.queue_id), queue.min_offset
                while offset < queue.max_offset:
                    part = admin.browse(*place, offset)
                    for message in part.messages():
                        found[message.lite_topic, message.body.decode()] += 1
                    offset = part.next_begin_offset
        return found

    def figures(self) -> str:
        """Once it has all."""
        bodies = [event["body"] for event in self.deliveries]
        failed = Counter(error.call for error in self.errors)
        return (
            f"{self.name}: {len(self.stored)} sends acknowledged, all delivered,"
            f" {len(bodies) - len({*bodies})} deliveries more; {sum(self.dead().values())} dead"
            f" letters; calls that failed: {dict(failed)}"
        )

    def _send(self) -> None:
        numbers: Counter[str] = Counter()
        while not self._over.wait(BETWEEN_SENDS_S):
            name = self._chance.choice(NAMES)
            number, began = numbers[name], time.time()
            numbers[name] += 1
            body = body_of(name, number)
            try:
                self._producer.do("send", id="p", topic=self.parent, body=body, lite=name)
                self.stored[body] = Sent(name, number, began, time.time())
            except SdkError as error:
                self.errors.append(UserError("send", time.time(), str(error)))

    def _subscribe(self) -> None:
        """The second consumer gives lite topics up and takes them again."""
        while not self._over.wait(BETWEEN_CHANGES_S):
            name = self._chance.choice(NAMES)
            for command in ("unsubscribe", "subscribe"):
                try:
                    self._consumers.do(command, id=CONSUMERS[1], lite=[name])
                except SdkError as error:
                    self.errors.append(UserError(command, time.time(), str(error)))


def poisonous() -> Iterator[int]:
    return iter(range(POISON_EVERY - 1, MOST_POISON * POISON_EVERY, POISON_EVERY))


def body_of(name: str, number: int) -> str:
    return f"{name} {number}{' poison' if (number + 1) % POISON_EVERY == 0 else ''}"


def out_of_order(traffic: LiteTraffic) -> list[str]:
    """What was delivered for the first time after a later message of its lite topic. What an SDK
    sent again, because the first answer was lost, has one place that is not known."""
    highest: defaultdict[str, int] = defaultdict(lambda: -1)
    seen: set[str] = set()
    wrong = []
    for event in traffic.deliveries:
        body = event["body"]
        if body in seen:
            continue
        seen.add(body)
        name, number = body.split()[:2]
        if int(number) < highest[name]:
            wrong.append(body)
        highest[name] = max(highest[name], int(number))
    return wrong


def came_again(traffic: LiteTraffic, outages: Sequence[Outage]) -> list[dict[str, Any]]:
    """Deliveries of what had been consumed when no outage was near, so that its acknowledgement
    was answered. What an SDK sent twice, because the first answer was lost, is there twice."""
    maybe_twice = {
        body
        for body, sent in traffic.stored.items()
        if any(outage.touches(sent.began, sent.ended) for outage in outages)
    }
    wrong = []
    consumed: dict[str, float] = {}
    for event in traffic.deliveries:
        body, at = event["body"], event["at"]
        before = consumed.get(body)
        consumed[body] = at
        if before is None or body.endswith("poison"):
            continue
        calm = not any(outage.touches(before, before) for outage in outages)
        if calm and body in traffic.stored and (event["attempt"] > 1 or body not in maybe_twice):
            wrong.append(event)
    return wrong


def all_work(clients: Sequence[LiteTraffic], since: float) -> None:
    """Waits until each of them gets what was sent to its lite topics after the moment."""
    for traffic in clients:
        until_sync(
            lambda traffic=traffic: traffic.works_since(since),  # type: ignore[misc]
            traffic.name,
            timeout_s=RECOVERY_S,
        )


def check(traffic: LiteTraffic, outages: Sequence[Outage]) -> None:
    """What was promised to it through the outages."""
    assert not traffic.ended, f"a process of {traffic.name} died"
    assert out_of_order(traffic) == []
    assert came_again(traffic, outages) == []
    poison = {(sent.name, body) for body, sent in traffic.stored.items() if body.endswith("poison")}
    dead = traffic.dead()
    assert poison <= dead.keys()
    assert all(body.endswith("poison") for _, body in dead)
