"""The console at the large size: 10,000 topics, 40,000 queues, 2,000 groups, 5,000 clients.

Three brokers and the console are in one process and take turns on one core, so that a page takes
longer than with brokers on hosts of their own. A page is asked for once before it is measured.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from aerobee.broker.v1.client_pb2 import HeartbeatRequest

from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire import rpcs
from bench.measure import Result
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import PopConsumer
from support.console.visitor import Visitor

BROKERS = ("a", "b", "c")
TOPICS, GROUPS, CLIENTS = 10_000, 2_000, 5_000
QUEUES = {"a": 2, "b": 1, "c": 1}  # of each topic: 40,000 in all
MESSAGES = 500  # topics that have messages, and a group that is behind and leases some
WAITING = 1_000  # of each broker: delayed messages, open transactions, leases of a group
HELD_MS = 3_600_000
ROUNDS = 5
LIMIT_MS, LIMIT_KB = 300.0, 150.0
PAGES = (
    "/",
    "/brokers",
    "/topics",
    "/topics?sort=lag",
    "/topics?name=7&sort=messages_in_rate&page=9",
    "/groups",
    "/groups?sort=lag",
    "/groups?name=17",
    "/clients",
    "/clients?text=client-4711",
    "/clients?group=group-17",
    "/dead-letters",
    "/delayed",
    "/transactions",
    "/leases",
    "/leases?group=group-17",
    "/lite",
    "/redrives",
    "/audit",
    "/dead-letters/group-17",
    "/messages?topic=topic-17",
    "/topics/topic-17",
    "/groups/group-17",
)


async def fill(visitor: Visitor) -> None:
    """Create topics, groups, clients, messages and offsets."""
    for name, broker in visitor.brokers.items():
        topics, queues = broker.tables.topics, QUEUES[name]
        for number in range(TOPICS):
            topics.put(TopicConfig(f"topic-{number}", queues, queues))
        for number in range(GROUPS):
            broker.tables.groups.put(SubscriptionGroup(f"group-{number}"))
        for number in range(MESSAGES):
            await broker.send(f"topic-{number}", b"x", b"y")
    for number in range(CLIENTS):
        beat = HeartbeatRequest(client_id=f"client-{number}", language="PYTHON", version="0.1.0")
        consumer = beat.consumers.add(consumer_group=f"group-{number % GROUPS}")
        consumer.subscriptions.add(topic=f"topic-{number % TOPICS}", expression="*")
        for name in BROKERS:
            await visitor.transport.call(name, rpcs.HEARTBEAT, beat, timeout_s=5)
    for number in range(MESSAGES):
        offsets = {(f"topic-{number}", name, 0): number % 2 for name in BROKERS}
        await visitor.admin.commit_offsets(f"group-{number}", offsets)
    for broker in visitor.brokers.values():
        await leave_waiting(broker)


async def leave_waiting(broker: BrokerHarness) -> None:
    """Leave delayed messages, open transactions and leases at a broker."""
    for properties in ({"DELAY": "18"}, {"TRAN_MSG": "true", "PGROUP": "producers"}, {}):
        sends = (
            broker.send("topic-17", b"x", properties=properties, queue_id=0) for _ in range(WAITING)
        )
        await asyncio.gather(*sends)
    for number in range(MESSAGES):
        consumer = PopConsumer(broker, f"group-{number}", f"topic-{number}")
        while await consumer.pop(invisible_ms=HELD_MS):
            pass


async def results() -> list[Result]:
    """Time and size of the slowest and the largest page. Each page is a row on stderr."""
    folder = Path(tempfile.mkdtemp())
    visitor = await Visitor.begin(folder, *BROKERS)
    try:
        await fill(visitor)
        # As a broker does with the objects of its start: else collections look at 30,000 topics.
        gc.collect()
        gc.freeze()
        times_ms: dict[str, float] = {}
        sizes_kb: dict[str, float] = {}
        calls: dict[str, int] = {}
        for page in PAGES:
            await visitor.get(page)
            visitor.transport.calls.clear()
            rounds = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                answer = await visitor.get(page)
                rounds.append(1_000 * (time.perf_counter() - start))
                if answer.status != 200 or "Not complete" in answer.text:
                    raise RuntimeError(f"{page} has the status {answer.status}, or lacks a broker")
            times_ms[page] = statistics.median(rounds)
            sizes_kb[page] = len(answer.body) / 1_024
            made = Counter(name for name, _ in visitor.transport.calls)
            calls[page] = max(made.values()) // ROUNDS
            print(f"{page}: {times_ms[page]:.0f} ms, {sizes_kb[page]:.0f} KB, {calls[page]} calls")
    finally:
        await visitor.end()
        gc.unfreeze()
        shutil.rmtree(folder)
    slowest = max(times_ms, key=times_ms.__getitem__)
    largest = max(sizes_kb, key=sizes_kb.__getitem__)
    size = f"{TOPICS:,} topics, {GROUPS:,} groups, {CLIENTS:,} clients, 3 brokers on one core"
    time_ms, size_kb = times_ms[slowest], sizes_kb[largest]
    most = max(calls.values())
    return [
        Result(
            "console_page_ms", "ms", time_ms, LIMIT_MS, time_ms / LIMIT_MS, 1.0,
            f"{slowest}, slowest of {len(PAGES)}; {size}; at most {most} calls to a broker; "
            "baseline: the limit",
        ),
        Result(
            "console_page_kb", "KB", size_kb, LIMIT_KB, size_kb / LIMIT_KB, 1.0,
            f"{largest}, largest of {len(PAGES)}; baseline: the limit",
        ),
    ]  # fmt: skip
