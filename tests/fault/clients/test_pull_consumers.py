"""A group of pull consumers under load while its members come, leave and are killed, and the broker
is killed and started again: every stored message is polled; how many are polled again is told.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from aerobee_client import AdminClient, Message, MqError, Producer
from fault.conftest import Campaign
from support.clock.polling import until_sync
from support.processes.service import ServiceProcess, namesrv_and_broker

TOPIC, GROUP, QUEUES = "pulled", "pulled-g", 8
MEMBERS = 4  # at most
BATCH = 40  # messages of one send
BETWEEN_SENDS_S = 0.05
BETWEEN_CHANGES_S = (0.5, 2.5)  # at least, at most
PATIENT = timedelta(seconds=60)
DRAIN_S = 120.0

# Prints what each poll returned before it polls again; leaves in order on SIGTERM.
MEMBER = f"""
import signal, sys
from aerobee_client import ConsumeFromWhere, PullConsumer
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with PullConsumer({GROUP!r}, consume_from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
    consumer.subscribe({TOPIC!r})
    while True:
        for message in consumer.poll(32):
            print(message.queue_id, message.queue_offset, message.body.decode())
        sys.stdout.flush()
"""

Place = tuple[int, int]  # queue id, queue offset


class Members:
    """Processes that have been members; what they printed stays."""

    def __init__(self, home: Path, namesrv: str) -> None:
        self._home = home
        self._env = {**os.environ, "NAMESRV_ADDR": namesrv}
        self._outputs: list[Path] = []
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        output = self._home / f"member-{len(self._outputs)}"
        self._outputs.append(output)
        with output.open("wb") as file:
            command = [sys.executable, "-c", MEMBER]
            self.running.append(subprocess.Popen(command, env=self._env, stdout=file))

    def end(self, number: int, *, killed: bool) -> None:
        process = self.running.pop(number)
        if killed:
            process.kill()
        else:
            process.terminate()
        process.wait()

    def end_all(self) -> None:
        while self.running:
            self.end(0, killed=True)

    def polled(self) -> Iterator[list[tuple[Place, str]]]:
        """Of each member, in its order. A line that was cut by a kill counts as not polled."""
        for output in self._outputs:
            lines = [line.split() for line in output.read_text().splitlines(keepends=True)]
            yield [((int(line[0]), int(line[1])), line[2]) for line in lines if len(line) == 3]


class Load(threading.Thread):
    """Sends until it is told to stop. `acknowledged`: bodies."""

    def __init__(self, namesrv: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: set[str] = set()
        self._namesrv = namesrv
        self._over = threading.Event()

    def run(self) -> None:
        number = 0
        with Producer("p", namesrv=self._namesrv, send_timeout=PATIENT) as producer:
            while not self._over.wait(BETWEEN_SENDS_S):
                bodies = [str(number + n) for n in range(BATCH)]
                number += BATCH
                producer.send_batch([Message(TOPIC, body.encode()) for body in bodies])
                self.acknowledged.update(bodies)

    def stop(self) -> None:
        self._over.set()
        self.join()


def change(members: Members, broker: ServiceProcess, chance: random.Random) -> str:
    """One of what may happen to the group."""
    kind = chance.choice(["start", "start", "leave", "kill", "broker"])
    if kind == "start" and len(members.running) == MEMBERS:
        kind = "leave"
    if kind in ("leave", "kill") and len(members.running) < 2:
        kind = "start"
    if kind == "start":
        members.start()
    elif kind == "broker":
        broker.kill()
        broker.start()
    else:
        members.end(chance.randrange(len(members.running)), killed=kind == "kill")
    return kind


def test_a_group_of_pull_consumers_loses_nothing(campaign: Campaign, tmp_path: Path) -> None:
    (seed,) = campaign.seeds(1, 1)
    print("seed", seed)
    chance = random.Random(seed)
    with ExitStack() as stack:
        namesrv, broker = stack.enter_context(namesrv_and_broker(tmp_path / "cluster"))
        admin = stack.enter_context(AdminClient(namesrv.address))
        admin.create_topic(TOPIC, queues=QUEUES)
        members = Members(tmp_path, namesrv.address)
        stack.callback(members.end_all)
        load = Load(namesrv.address)
        load.start()
        members.start()
        kinds: Counter[str] = Counter()
        for _ in range(130 if campaign.long else 10):
            time.sleep(chance.uniform(*BETWEEN_CHANGES_S))
            kinds[change(members, broker, chance)] += 1
        load.stop()

        def missing() -> set[Place]:
            return places(admin) - {place for each in members.polled() for place, _ in each}

        until_sync(lambda: not missing(), timeout_s=DRAIN_S, retry_on=(MqError,))
        polled = list(members.polled())
        check(polled, places(admin), load.acknowledged)
        campaign.report(figures(kinds, polled, load.acknowledged))


def places(admin: AdminClient) -> set[Place]:
    """Of all that is stored."""
    return {
        (queue.queue_id, queue_offset)
        for queue in admin.topic_status(TOPIC)
        for queue_offset in range(queue.max_offset)
    }


def check(polled: list[list[tuple[Place, str]]], stored: set[Place], sent: set[str]) -> None:
    bodies: dict[Place, str] = {}
    for place, body in (each for member in polled for each in member):
        assert place in stored, "it was never stored"
        assert bodies.setdefault(place, body) == body, "two messages at one place"
    assert sent <= set(bodies.values())


def figures(kinds: Counter[str], polled: list[list[tuple[Place, str]]], sent: set[str]) -> str:
    rebalances = sum(count for kind, count in kinds.items() if kind != "broker")
    deliveries = sum(map(len, polled))
    stored = {place for member in polled for place, _ in member}
    return (
        f"{rebalances} rebalances ({kinds['start']} joined, {kinds['leave']} left, "
        f"{kinds['kill']} killed), {kinds['broker']} kills of the broker, {len(sent)} "
        f"acknowledged messages, 0 lost, {deliveries - len(stored)} of {len(stored)} polled again"
    )
