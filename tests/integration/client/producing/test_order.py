"""Ordered sends, delays and bounds against real processes, some of which die, restart or freeze."""

from __future__ import annotations

import asyncio
import random
import signal
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from aerobee_client import (
    AdminClient,
    AsyncAdminClient,
    AsyncProducer,
    Code,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    MqError,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SelectByHash,
)
from support.client.message_group import Group
from support.clock.polling import until, until_sync
from support.codes import raises_code
from support.processes.service import ServiceProcess, namesrv_and_broker, namesrv_and_brokers

PATIENT = timedelta(seconds=60)
BROKERS = ("broker-a", "broker-b")
QUEUES = 4


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[tuple[ServiceProcess, list[ServiceProcess]]]:
    """A name server, and its brokers."""
    with namesrv_and_brokers(tmp_path, names=BROKERS) as (namesrv, brokers):
        yield namesrv, list(brokers.values())


async def stored(admin: AsyncAdminClient, topic: str) -> dict[MessageQueue, list[ReceivedMessage]]:
    """All messages of a topic, queue by queue, in their order."""
    found: dict[MessageQueue, list[ReceivedMessage]] = {}
    for status in await admin.topic_status(topic):
        queue = MessageQueue(topic, status.broker_name, status.queue_id)
        messages = found[queue] = []
        offset = status.min_offset
        while offset < status.max_offset:
            browsed = await admin.browse(topic, *queue[1:], offset, max_messages=1_000)
            messages += browsed.messages()
            offset = browsed.next_begin_offset
    return found


async def whole(admin: AsyncAdminClient, topic: str) -> dict[MessageQueue, list[ReceivedMessage]]:
    """As `stored`, once both brokers are registered: name servers forget them when they start."""

    async def is_whole() -> bool:
        return {status.broker_name for status in await admin.topic_status(topic)} == set(BROKERS)

    await until(is_whole, retry_on=(MqError,), timeout_s=60)
    return await stored(admin, topic)


async def further(groups: list[Group], count: int) -> None:
    """Returns when that many more messages of each group are acknowledged."""
    wanted = {group.name: group.acknowledged + count for group in groups}
    await until(
        lambda: all(group.acknowledged >= wanted[group.name] for group in groups), timeout_s=60
    )


@pytest.mark.parametrize("accumulate", [True, False])
async def test_message_groups_keep_their_order_while_servers_die_in_turn(
    two_brokers: tuple[ServiceProcess, list[ServiceProcess]],
    accumulate: bool,
) -> None:
    """Brokers, and the name server with all routes. Each group stays in its queue, none of its
    messages is lost, and each is first stored behind the one before it."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    namesrv, brokers = two_brokers
    address = namesrv.address
    topic = "steps"
    groups = [Group(f"g{number}", topic, rng) for number in range(12)]
    stop = asyncio.Event()
    async with AsyncAdminClient(address) as admin:
        await admin.create_topic(topic, queues=QUEUES, message_type="FIFO")
        async with AsyncProducer(namesrv=address, accumulate=accumulate) as producer:
            sending = [asyncio.create_task(group.send(producer, stop)) for group in groups]
            for victim in rng.sample([*brokers, namesrv], 3):
                await further(groups, rng.randint(1, 50))
                await asyncio.to_thread(victim.kill)
                await asyncio.sleep(rng.uniform(0.0, 1.0))  # how long it is away
                await asyncio.to_thread(victim.start)
            await further(groups, 10)
            stop.set()
            await asyncio.gather(*sending)
        queues: dict[str, set[MessageQueue]] = defaultdict(set)
        bodies: dict[str, list[int]] = defaultdict(list)
        for queue, messages in (await whole(admin, topic)).items():
            for message in messages:
                group = message.properties["__SHARDINGKEY"]
                queues[group].add(queue)
                bodies[group].append(int(message.body))
    assert {len(found) for found in queues.values()} == {1}
    assert len({queue.broker_name for found in queues.values() for queue in found}) == 2
    for sender in groups:
        first_of_each = list(dict.fromkeys(bodies[sender.name]))
        assert first_of_each == list(range(len(first_of_each))), (seed, sender.name)
        assert len(first_of_each) >= sender.acknowledged > 0, (seed, sender.failures)


async def test_a_broker_that_is_gone_for_good_loses_its_message_groups(
    two_brokers: tuple[ServiceProcess, list[ServiceProcess]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, here a short one, they are spread over the queues of the other one. In each
    queue they are in order."""
    monkeypatch.setattr("aerobee_wire.queues.group_queues.AWAY_MS", 2_000)
    namesrv, brokers = two_brokers
    address = namesrv.address
    async with AsyncAdminClient(address) as admin:
        await admin.create_topic("moves", queues=QUEUES)
    async with AsyncProducer(namesrv=address, send_timeout=timedelta(seconds=1)) as producer:
        groups = [f"g{number}" for number in range(8)]
        for number in range(4):
            for group in groups:
                message = Message("moves", b"%d" % number, message_group=group)
                # Again and again while the group waits for its broker.
                await until(partial(producer.send, message), retry_on=(MqError,))
            if not number:
                await asyncio.to_thread(brokers[0].kill)
        with raises_code(Code.BROKER_UNREACHABLE):
            await producer.send(Message("moves", b"x"), queue=MessageQueue("moves", BROKERS[0], 0))
        await asyncio.to_thread(brokers[0].start)
    async with AsyncAdminClient(address) as admin:
        found = await whole(admin, "moves")
    for group in groups:
        parts = {  # a message that was sent again counts once
            queue: list(
                dict.fromkeys(
                    int(m.body) for m in messages if m.properties["__SHARDINGKEY"] == group
                )
            )
            for queue, messages in found.items()
        }
        assert sorted(number for part in parts.values() for number in part) == [0, 1, 2, 3]
        later = [queue for queue, part in parts.items() if part[-1:] == [3]]
        assert [queue.broker_name for queue in later] == [BROKERS[1]]
        assert parts[later[0]] in ([0, 1, 2, 3], [1, 2, 3]), "it moves once"


async def test_a_broker_that_drains_loses_its_message_groups_without_a_failure(
    two_brokers: tuple[ServiceProcess, list[ServiceProcess]],
) -> None:
    """What it refuses goes to the queues of the other one, behind each other."""
    namesrv, brokers = two_brokers
    address = namesrv.address
    stop = asyncio.Event()
    rng = random.Random(0)
    groups = [Group(f"g{number}", "drained", rng) for number in range(8)]
    async with AsyncAdminClient(address) as admin:
        await admin.create_topic("drained", queues=QUEUES)
        async with AsyncProducer(namesrv=address) as producer:
            sending = [asyncio.create_task(group.send(producer, stop, PATIENT)) for group in groups]
            await further(groups, 20)
            await admin.drain_broker(brokers[0].address)
            await further(groups, 20)
            stop.set()
            await asyncio.gather(*sending)
        found = await whole(admin, "drained")
    assert {str(group.failures) for group in groups} == {"Counter()"}
    for group in groups:
        parts = {
            queue: [int(m.body) for m in messages if m.properties["__SHARDINGKEY"] == group.name]
            for queue, messages in found.items()
        }
        assert all(part == sorted(part) for part in parts.values())
        numbers = sorted(number for part in parts.values() for number in part)
        assert numbers == list(range(group.acknowledged))


def test_sends_of_a_thread_keep_their_order(namesrv: str) -> None:
    """The plain class, without waiting for any of them; and a batch behind them."""
    topic, count = "threads", 2_000
    with AdminClient(namesrv) as admin:
        admin.create_topic(topic, queues=QUEUES)
    with Producer(namesrv=namesrv, send_timeout=PATIENT, max_pending_messages=300) as producer:
        futures = [
            producer.send_async(Message(topic, b"%d" % n, message_group=f"g{n % 3}"))
            for n in range(count)
        ]
        batch = [Message(topic, b"%d" % n, message_group=f"g{n % 3}") for n in range(count, 3_000)]
        selected = [
            producer.send_async(Message(topic, b"%d" % n, keys="k"), selector=SelectByHash())
            for n in range(500)
        ]
        producer.send_batch(batch)
        results = [future.result() for future in futures]
        assert len({future.result().queue for future in selected}) == 1
    for group in range(3):
        own = results[group::3]
        assert len({result.queue for result in own}) == 1
        offsets = [result.queue_offset for result in own]
        assert offsets == sorted(offsets)
    chosen = [future.result().queue_offset for future in selected]
    assert chosen == sorted(chosen)


def test_a_delay_is_not_a_delay_of_the_retry(namesrv: str) -> None:
    """It is over when the message was delivered; also one that does not wait for the disk is
    consumed."""
    seen: list[ReceivedMessage] = []

    def listen(message: ReceivedMessage) -> None:
        seen.append(message)
        if message.reconsume_times == 0 and message.body == b"late":
            raise ValueError("once")

    with AdminClient(namesrv) as admin:
        admin.create_group("delays-g", max_attempts=2, retry_delays=[timedelta(seconds=1)])
    with Producer(namesrv=namesrv) as producer:
        late = producer.send(Message("delays", b"late", delay=timedelta(seconds=2)))
        recalled = producer.send(Message("delays", b"never", delay=timedelta(seconds=3)))
        producer.recall("delays", recalled.recall_handle)
        producer.send(Message("delays", b"now", delay=timedelta(0)))
        producer.send(Message("delays", b"quick", wait_store_ok=False))
    assert late.recall_handle
    with PushConsumer(
        "delays-g", listen, namesrv=namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    ) as consumer:
        consumer.subscribe("delays")
        until_sync(lambda: Counter(m.body for m in seen)[b"late"] == 2)
    assert Counter(message.body for message in seen) == {b"now": 1, b"quick": 1, b"late": 2}
    first, retried = (message for message in seen if message.body == b"late")
    assert first.store_timestamp_ms - first.born_timestamp_ms >= 2_000
    assert retried.store_timestamp_ms - first.store_timestamp_ms < 30_000


def test_priorities_have_queues_of_their_own(namesrv: str) -> None:
    with AdminClient(namesrv) as admin:
        admin.create_topic("priorities", queues=QUEUES, message_type="PRIORITY")
    with Producer(namesrv=namesrv) as producer:
        for priority, queue_id in ((None, 0), (0, 0), (2, 2), (9, 3)):
            message = Message("priorities", b"x", priority=priority)
            assert producer.send(message).queue.queue_id == queue_id


async def test_one_bad_message_of_a_thousand_fails_alone(tmp_path: Path) -> None:
    """Accumulated ones: the broker takes smaller bodies than this producer does."""
    with namesrv_and_broker(tmp_path, "--set=maxMessageSize=1024") as (namesrv, _):
        async with AsyncAdminClient(namesrv.address) as admin:
            await admin.create_topic("thousand", queues=QUEUES)
            async with AsyncProducer(namesrv=namesrv.address, send_timeout=PATIENT) as producer:
                bodies = [b"x" * (1_025 if n == 617 else 1_000) for n in range(1_000)]
                sends = [producer.send(Message("thousand", body)) for body in bodies]
                outcomes = await asyncio.gather(*sends, return_exceptions=True)
            codes = Counter(getattr(outcome, "code", None) for outcome in outcomes)
            assert codes == {None: 999, Code.MESSAGE_ILLEGAL: 1}
            assert isinstance(outcomes[617], MqError)
            found = await stored(admin, "thousand")
    assert sum(map(len, found.values())) == 999


@pytest.mark.parametrize(("group", "accumulate"), [("", True), ("", False), ("g", True)])
def test_memory_stays_within_its_bound_while_a_broker_is_frozen(
    tmp_path: Path, group: str, accumulate: bool
) -> None:
    """32 times as much is offered; everyone is answered at his deadline, and it goes on after."""
    limit, size, send_timeout = 4 * 1024**2, 16 * 1024, timedelta(seconds=2)
    with (
        namesrv_and_broker(tmp_path) as (namesrv, broker),
        Producer(
            namesrv=namesrv.address, max_pending_bytes=limit, send_timeout=send_timeout
        ) as producer,
    ):
        message = Message("frozen", b"first", message_group=group)
        producer.send(message, timeout=PATIENT)
        broker.send_signal(signal.SIGSTOP)
        tracemalloc.start()
        began_s = time.monotonic()
        codes: Counter[Code] = Counter()
        waiting = []
        for number in range(32 * limit // size):
            body = number.to_bytes(8, "big") * (size // 8)
            message = Message("frozen", body, message_group=group)
            future = producer.send_async(message, block=False, accumulate=accumulate)
            if future.done():
                error = future.exception()
                assert isinstance(error, MqError)
                codes[error.code] += 1
            else:
                waiting.append(future)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # On a slow machine, sends reach their deadline here. Their futures refer to their messages.
        ended = limit * int((time.monotonic() - began_s) / send_timeout.total_seconds())
        for future in waiting:
            error = future.exception(timeout=30)
            assert isinstance(error, MqError)
            codes[error.code] += 1
        broker.send_signal(signal.SIGCONT)
        again = Message("frozen", b"again", message_group=group)
        producer.send(again, timeout=PATIENT)
    assert codes[Code.FLOW_CONTROL] > 16 * limit // size  # some come when those before are answered
    assert set(codes) <= {Code.FLOW_CONTROL, Code.REQUEST_TIMEOUT, Code.BROKER_UNREACHABLE}
    # Each body is there once, and once in a request; alone, in one of its own and in the socket's.
    assert peak < (4 if accumulate else 8) * limit + ended
