"""The simple consumer against real processes: two brokers, kills, order, dead letters, renewal."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest

from aerobee_client import (
    AdminClient,
    AsyncAdminClient,
    AsyncProducer,
    AsyncSimpleConsumer,
    BrokerUnreachable,
    LeasedMessage,
    LeaseFailures,
    Message,
    MqError,
    Producer,
    SimpleConsumer,
)
from aerobee_wire.status import Code
from aerobee_wire.topics import dead_letter_topic
from support.clock.polling import until
from support.codes import raises_code
from support.interrupts import interrupted_at
from support.processes.service import ServiceProcess, namesrv_and_brokers

LEASE = timedelta(seconds=5)
MINUTE = timedelta(minutes=1)
NO_WAIT = timedelta(0)
NAMES = ("broker-a", "broker-b")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServiceProcess]]:
    """Two brokers, and their name server under its own name."""
    data = tmp_path_factory.mktemp("two-brokers")
    with namesrv_and_brokers(data, names=NAMES) as (namesrv, started):
        yield {"namesrv": namesrv, **started}


@pytest.fixture
def address(brokers: dict[str, ServiceProcess]) -> str:
    return brokers["namesrv"].address


async def filled(address: str, topic: str, count: int, *, queues: int = 2) -> set[bytes]:
    """A topic on both brokers with so many messages. Returns their bodies."""
    bodies = [b"%d" % number for number in range(count)]
    async with AsyncAdminClient(address) as admin, AsyncProducer(namesrv=address) as producer:
        # All channels of a process to an address share its pause after a failure, up to a second.
        await until(partial(_all_answer, admin), "both brokers", retry_on=(BrokerUnreachable,))
        await admin.create_topic(topic, queues=queues)
        await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))
    return set(bodies)


async def _all_answer(admin: AsyncAdminClient) -> bool:
    return len([await admin.broker_status(name) for name in NAMES]) == len(NAMES)


def simple(group: str, topic: str, address: str, **settings: object) -> AsyncSimpleConsumer:
    consumer = AsyncSimpleConsumer(group, namesrv=address, **settings)  # type: ignore[arg-type]
    consumer.subscribe(topic)
    return consumer


async def consume(
    consumer: AsyncSimpleConsumer, seen: list[bytes], until_seen: set[bytes], workers: int = 4
) -> None:
    """Receives and acknowledges until all are seen."""

    async def work() -> None:
        while not until_seen <= set(seen):
            messages = await consumer.receive(32, LEASE, timedelta(seconds=1))
            await consumer.ack(messages)
            seen.extend(message.body for message in messages)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


async def test_every_message_of_two_brokers_is_received_once(address: str) -> None:
    sent = await filled(address, "all", 1_000)
    seen: list[bytes] = []
    async with simple("all-g", "all", address) as first, simple("all-g", "all", address) as second:
        await asyncio.gather(consume(first, seen, sent), consume(second, seen, sent))
    assert Counter(seen) == Counter(sent)
    async with simple("all-g", "all", address) as consumer:
        assert not await consumer.receive(32, LEASE, LEASE + timedelta(seconds=1))


async def test_a_receive_wakes_for_either_broker(address: str) -> None:
    await filled(address, "wakes", 0)
    async with (
        simple("wakes-g", "wakes", address) as consumer,
        AsyncProducer(namesrv=address) as producer,
    ):
        queues = await producer.queues("wakes")
        for queue in (*queues, *reversed(queues)):
            waiting = asyncio.create_task(consumer.receive(1, LEASE, timedelta(seconds=20)))
            await asyncio.sleep(0.05)
            await producer.send(Message("wakes", b"x"), queue=queue)
            [message] = await waiting
            assert message.broker_name == queue.broker_name and message.delivery_attempt == 1
            await consumer.ack(message)


async def test_nothing_is_lost_while_one_broker_is_killed(
    brokers: dict[str, ServiceProcess], address: str
) -> None:
    sent = await filled(address, "killed", 400)
    seen: list[bytes] = []
    broker = brokers["broker-b"]
    async with simple("killed-g", "killed", address, request_timeout=MINUTE) as consumer:
        consuming = asyncio.create_task(consume(consumer, seen, sent))
        await until(lambda: len(seen) > 50)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await consuming
    assert set(seen) == sent


async def test_a_killed_consumers_messages_come_again_after_their_lease(address: str) -> None:
    await filled(address, "dies", 10)
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _VICTIM, address, stdout=asyncio.subprocess.PIPE
    )
    assert victim.stdout is not None
    assert await victim.stdout.readline() == b"10\n"
    began = time.monotonic()
    victim.kill()
    await victim.wait()
    got: list[LeasedMessage] = []
    async with simple("dies-g", "dies", address) as consumer:
        assert not await consumer.receive(32, LEASE, timedelta(seconds=1))
        while len(got) < 10:
            got += await consumer.receive(32, LEASE)
        assert time.monotonic() - began < 2 * LEASE.total_seconds() + 5
        await consumer.ack(got)
    assert {message.delivery_attempt for message in got} == {2}


_VICTIM = """
import sys, time
from datetime import timedelta
from aerobee_client import SimpleConsumer
with SimpleConsumer("dies-g", namesrv=sys.argv[1]) as consumer:
    consumer.subscribe("dies")
    got = []
    while len(got) < 10:
        got += consumer.receive(32, timedelta(seconds=5), renew=True)
    time.sleep(8)  # renewed meanwhile
    print(len(got), flush=True)
    time.sleep(60)
"""


async def test_message_groups_stay_in_order_while_a_broker_is_killed(
    brokers: dict[str, ServiceProcess], address: str
) -> None:
    """Two consumers: a receive never skips a message of a group, and never repeats a settled one.

    The kill may lose the answer of an acknowledgement that the broker has stored. The other
    consumer may then receive the next message before the repeated call answers. The judge
    therefore compares a receive with the acknowledgements that have begun.
    """
    groups, each = [f"plane-{number}" for number in range(8)], 30
    async with AsyncAdminClient(address) as admin, AsyncProducer(namesrv=address) as producer:
        await admin.create_topic("ordered", queues=2, message_type="FIFO")
        await asyncio.gather(
            *(
                producer.send(Message("ordered", b"%d" % number, message_group=name))
                for number in range(each)
                for name in groups
            )
        )
    begun: dict[str, set[int]] = {name: set() for name in groups}
    acked: dict[str, set[int]] = {name: set() for name in groups}
    wrong: list[str] = []

    def judge(messages: Sequence[LeasedMessage]) -> None:
        received: dict[str, list[int]] = {}
        for message in messages:
            received.setdefault(message.properties["__SHARDINGKEY"], []).append(int(message.body))
        for name, numbers in received.items():
            first = numbers[0]
            is_in_turn = max(acked[name], default=-1) < first <= len(begun[name])
            if not is_in_turn or numbers != list(range(first, first + len(numbers))):
                wrong.append(f"{name}: {numbers} after {len(begun[name])}, {len(acked[name])}")

    async def work(consumer: AsyncSimpleConsumer) -> None:
        while any(len(numbers) < each for numbers in begun.values()):
            messages = await consumer.receive(8, LEASE, timedelta(seconds=1))
            judge(messages)
            for message in messages:
                name, number = message.properties["__SHARDINGKEY"], int(message.body)
                begun[name].add(number)
                try:
                    await consumer.ack(message)
                except MqError as error:
                    if error.code is not Code.INVALID_RECEIPT_HANDLE:
                        raise
                    break  # those behind it are received again
                acked[name].add(number)

    settings = {"fifo": True, "request_timeout": MINUTE}
    async with (
        simple("ordered-g", "ordered", address, **settings) as first,
        simple("ordered-g", "ordered", address, **settings) as second,
        asyncio.timeout(120),
    ):
        works = [asyncio.create_task(work(consumer)) for consumer in (first, second, first)]
        await until(lambda: sum(map(len, acked.values())) > 40)
        await asyncio.to_thread(brokers["broker-a"].kill)
        await asyncio.to_thread(brokers["broker-a"].start)
        await asyncio.gather(*works)
    assert not wrong
    assert all(sorted(set(numbers)) == list(range(each)) for numbers in acked.values())


def test_dead_letters_have_their_reason_and_stale_leases_are_reported(address: str) -> None:
    """By the plain class."""
    with AdminClient(address) as admin, Producer(namesrv=address) as producer:
        admin.create_topic("poison", queues=1)
        producer.send_batch([Message("poison", b"%d" % number) for number in range(4)])
        with SimpleConsumer("poison-g", namesrv=address) as consumer:
            consumer.subscribe("poison")
            messages = consumer.receive(32, timedelta(seconds=1), timedelta(seconds=20))
            assert len(messages) == 4
            consumer.dead_letter(messages[0], ValueError("not a flight"))
            consumer.ack(messages[1])
            consumer.ack(messages[1])
            while {m.message_id for m in consumer.receive(32, MINUTE)} != {
                m.message_id for m in messages[2:]
            }:
                pass
            with raises_code(Code.INVALID_RECEIPT_HANDLE):
                consumer.ack(messages[2])
            with pytest.raises(LeaseFailures) as caught:
                consumer.ack(messages[1:])
            assert [failure is None for failure in caught.value.failures] == [True, False, False]
        broker_name = messages[0].broker_name
        [letter] = admin.browse(dead_letter_topic("poison-g"), broker_name, 0, 0).messages()
        assert letter.body == messages[0].body
        assert (letter.failure_reason, letter.failure_description) == ("ValueError", "not a flight")
        assert not admin.list_clients("poison-g"), "it has unregistered"


def test_threads_work_on_leases_that_are_renewed(address: str) -> None:
    with AdminClient(address) as admin, Producer(namesrv=address) as producer:
        admin.create_topic("slow", queues=1)
        producer.send_batch([Message("slow", b"%d" % number) for number in range(4)])
    attempts: Counter[int] = Counter()
    lock = threading.Lock()
    with SimpleConsumer("slow-g", namesrv=address) as consumer, ThreadPoolExecutor(4) as pool:
        consumer.subscribe("slow")

        def work(message: LeasedMessage) -> None:
            with consumer.renewing(message) as renewal:
                time.sleep(3)
                consumer.ack(message)
            assert not renewal.lost
            with lock:
                attempts[message.delivery_attempt] += 1

        messages = consumer.receive(32, timedelta(seconds=1), timedelta(seconds=20))
        for done in pool.map(work, messages):
            assert done is None
        assert not consumer.receive(32, LEASE, timedelta(seconds=2))
    assert attempts == {1: 4}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_interrupted_receive_of_a_plain_class_gives_its_messages_back(address: str) -> None:
    """At each line between the caller and the loop."""
    sent = await filled(address, "interrupted", 64)
    got: list[LeasedMessage] = []
    with SimpleConsumer("interrupted-g", namesrv=address) as consumer:
        consumer.subscribe("interrupted")
        for line in itertools.count():
            with interrupted_at(line, "runtime/facade.py", "runtime/loop_thread.py") as places:
                try:
                    got += consumer.receive(32, MINUTE, MINUTE)
                except KeyboardInterrupt:
                    assert places
            if not places:
                break
        while len(got) < len(sent):
            messages = consumer.receive(32, MINUTE, timedelta(seconds=20))
            assert messages, f"{len(got)} of {len(sent)} came: the others are still on lease"
            got += messages
        consumer.ack(got)
    assert {message.body for message in got} == sent and len(got) == len(sent)
    assert {message.delivery_attempt for message in got} == {1}
