"""Requests and replies over real processes: two brokers, one that restarts, a requester that is
killed."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    Code,
    ConsumeFromWhere,
    Message,
    MqError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from support.clock.polling import until, until_sync
from support.codes import raises_code
from support.processes.service import ServiceProcess, namesrv_and_brokers

TOPIC = "questions"
PATIENT = timedelta(seconds=40)
TESTS = Path(__file__).parents[3]


Cluster = tuple[ServiceProcess, dict[str, ServiceProcess]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with namesrv_and_brokers(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def namesrv(cluster: Cluster) -> ServiceProcess:
    return cluster[0]


@pytest.fixture
def brokers(cluster: Cluster) -> list[ServiceProcess]:
    return list(cluster[1].values())


class Replier:
    """A consumer that replies to every request; `go_on` holds it up."""

    def __init__(self, namesrv: str) -> None:
        self.seen: list[ReceivedMessage] = []
        self.errors: list[MqError] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.consumer = AsyncPushConsumer(
            "repliers",
            self.listen,
            namesrv=namesrv,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        self.consumer.subscribe(TOPIC)

    async def listen(self, message: ReceivedMessage) -> None:
        self.seen.append(message)
        await self.go_on.wait()
        try:
            await self.consumer.reply(message, b"re: " + message.body)
        except MqError as error:
            self.errors.append(error)


async def test_requests_through_two_brokers_and_a_restart(
    namesrv: ServiceProcess, brokers: list[ServiceProcess]
) -> None:
    """Nothing of a request or reply is lost when a broker restarts between the two."""
    async with AsyncAdminClient(namesrv.address) as admin:
        await admin.create_topic(TOPIC, queues=2)
    replier = Replier(namesrv.address)
    producer = AsyncProducer(namesrv=namesrv.address, accumulate=False)  # to both brokers
    async with producer, replier.consumer:
        bodies = [b"%d" % n for n in range(100)]
        asking = (producer.request(Message(TOPIC, body), PATIENT) for body in bodies)
        answers = await asyncio.gather(*asking)
        assert [answer.body for answer in answers] == [b"re: " + body for body in bodies]
        assert {message.broker_name for message in replier.seen} == {"broker-a", "broker-b"}
        replier.go_on.clear()
        replier.seen.clear()
        pending = [
            asyncio.create_task(producer.request(Message(TOPIC, body), PATIENT))
            for body in bodies[:20]
        ]
        await until(lambda: len(replier.seen) == 20)
        for broker in brokers:
            await asyncio.to_thread(broker.kill)
        replier.go_on.set()  # they reply while no broker is there
        await asyncio.sleep(0.5)
        for broker in brokers:
            await asyncio.to_thread(broker.start)
        answers = await asyncio.gather(*pending)
    assert [answer.body for answer in answers] == [b"re: " + body for body in bodies[:20]]


async def test_a_requester_that_is_killed(
    namesrv: ServiceProcess, brokers: list[ServiceProcess]
) -> None:
    replier = Replier(namesrv.address)
    replier.go_on.clear()
    command = (sys.executable, "-m", "support.client.programs.requesting", namesrv.address, TOPIC)
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    async with replier.consumer, AsyncAdminClient(namesrv.address) as admin:

        async def are_connected(clients: int) -> bool:
            return len(await admin.list_clients()) == clients

        process = await asyncio.create_subprocess_exec(*command, env=environment)
        try:
            await until(lambda: replier.seen)
            await until(lambda: are_connected(2), "the requester beside the replier")
        finally:
            process.kill()
            await process.wait()
        # Until then, a broker may write a reply to the socket of the killed process.
        await until(lambda: are_connected(1), "the brokers notice the end of the requester")
        replier.go_on.set()
        await until(lambda: replier.errors)
    assert replier.errors[0].code is Code.CONSUMER_NOT_ONLINE


def test_the_plain_classes(namesrv: ServiceProcess, brokers: list[ServiceProcess]) -> None:
    """A listener on a thread replies; a request past its TTL reaches none."""
    seen: list[bytes] = []
    replied = threading.Event()

    def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)
        consumer.reply(message, message.body.upper(), {"lang": "en"})
        replied.set()

    consumer = PushConsumer(
        "repliers",
        listen,
        namesrv=namesrv.address,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    consumer.subscribe(TOPIC)
    with Producer(namesrv=namesrv.address) as producer:
        with raises_code(Code.REQUEST_TIMEOUT):
            producer.request(Message(TOPIC, b"nobody is there"), timedelta(seconds=1))
        time.sleep(0.1)
        with consumer:
            answer = producer.request(Message(TOPIC, b"ping"), PATIENT)
        assert (answer.body, answer.properties) == (b"PING", {"lang": "en"})
    assert replied.is_set() and seen == [b"ping"]


@pytest.mark.parametrize("kind", [SimpleConsumer, PullConsumer])
def test_consumers_without_a_listener_reply(
    kind: type[SimpleConsumer] | type[PullConsumer],
    namesrv: ServiceProcess,
    brokers: list[ServiceProcess],
) -> None:
    consumer = kind(
        "repliers", namesrv=namesrv.address, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe(TOPIC)

    def receive() -> Sequence[ReceivedMessage]:
        return consumer.receive() if isinstance(consumer, SimpleConsumer) else consumer.poll()

    with (
        Producer(namesrv=namesrv.address) as producer,
        consumer,
        ThreadPoolExecutor(1) as another_thread,
    ):
        asking = another_thread.submit(producer.request, Message(TOPIC, b"ping"), PATIENT)
        consumer.reply(until_sync(receive)[0], b"pong")
        assert asking.result().body == b"pong"
