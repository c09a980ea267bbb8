"""A shop whose processes are killed, from outside: `transacting` runs one, `settled` sees that
every transaction ended as the database of the shop says.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aerobee_client import AsyncAdminClient, AsyncTransactionProducer
from aerobee_wire import topics
from support.broker.calls import BrokerCaller
from support.client.programs.transacting import GROUP, TOPIC, Database
from support.clock.polling import until
from support.processes.service import ServiceProcess

TESTS = Path(__file__).parents[3]
QUEUES = 4  # of TOPIC, on each broker
# Half messages are asked about after half a second, and again as often.
QUICK_CHECKS = ("--set=transactionTimeOut=500", "--set=transactionCheckInterval=500")


@contextmanager
def transacting(namesrv: str, database: Path, step: str) -> Iterator[subprocess.Popen[str]]:
    """A process of support.client.programs.transacting; killed at the end."""
    module = "support.client.programs.transacting"
    command = [sys.executable, "-m", module, namesrv, str(database), step]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def create_topic(namesrv: str) -> None:
    async with AsyncAdminClient(namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)


async def stored(brokers: Sequence[ServiceProcess], topic: str = TOPIC) -> list[bytes]:
    """The bodies of all messages of a topic, each as often as it is there."""
    found = []
    for broker in brokers:
        async with BrokerCaller(broker.address) as caller:
            for queue_id in range(1 if topic == topics.HALF_TOPIC else QUEUES):
                found += [message.body for message in await caller.read(topic, queue_id)]
    return found


async def nothing_open(namesrv: str, brokers: int = 1) -> bool:
    """Whether every transaction has ended. `brokers`: how many there are."""
    async with AsyncAdminClient(namesrv) as admin:
        names = [f"broker-{letter}" for letter in "ab"[:brokers]]
        backlogs = [await admin.broker_backlog(name) for name in names]
    return not any(backlog.half_messages for backlog in backlogs)


async def settled(
    namesrv: str, brokers: Sequence[ServiceProcess], database: Database
) -> tuple[list[bytes], list[bytes]]:
    """Another process of the shop answers for those that are gone, until nothing is open. Returns
    what was stored as half messages, and what consumers see: what is in the database, no more and
    no less; twice only what was sent twice."""
    async with AsyncTransactionProducer(GROUP, database.check, namesrv=namesrv):
        await until(lambda: nothing_open(namesrv, len(brokers)), "all have ended", timeout_s=60)
    halves = await stored(brokers, topics.HALF_TOPIC)
    visible = await stored(brokers)
    sent, seen = Counter(halves), Counter(visible)
    assert seen.keys() == database.rows()
    # A half message whose answer was lost is sent again: then there are two of one message id.
    assert seen <= sent
    return halves, visible
