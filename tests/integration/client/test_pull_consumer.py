"""Pull consumers against real processes: members that are killed, brokers and name servers that go
away and come back, and where each of them reads on.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aerobee_client import (
    AdminClient,
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    MessageQueue,
    MqError,
    Producer,
    PullConsumer,
    Sql,
)
from aerobee_wire.status import Code
from support.clock.polling import until, until_sync
from support.codes import raises_code
from support.processes.service import ServiceProcess, namesrv_and_broker

SOON = timedelta(milliseconds=300)
PATIENT = timedelta(seconds=60)

# A member that polls until it is killed, and prints what it has got.
MEMBER = """
import sys
from aerobee_client import ConsumeFromWhere, PullConsumer
with PullConsumer(sys.argv[1], consume_from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
    consumer.subscribe(sys.argv[2])
    while True:
        for message in consumer.poll(10):
            print(message.body.decode(), flush=True)
"""


@contextmanager
def member(namesrv: str, group: str, topic: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, group, topic],
            env={**os.environ, "NAMESRV_ADDR": namesrv},
            stdout=file,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def numbered(topic: str, count: int, first: int = 0) -> list[Message]:
    return [Message(topic, b"%d" % n) for n in range(first, first + count)]


def bodies(first: int, last: int) -> Counter[bytes]:
    return Counter(b"%d" % n for n in range(first, last))


def test_a_batch_job_goes_on_where_the_last_one_ended(namesrv: str) -> None:
    with AdminClient(namesrv) as admin, Producer("p", namesrv=namesrv) as producer:
        admin.create_topic("batch", queues=4)
        for run in range(3):
            producer.send_batch(numbered("batch", 500, run * 500))
            with PullConsumer("batch-g", namesrv=namesrv) as job:
                job.subscribe("batch")
                seen = Counter(message.body for message in job.read_to_end())
                assert sum(job.lag().values()) == 0
            assert seen == bodies(run * 500, run * 500 + 500)
        progress = admin.consume_progress("batch-g", "batch")
        assert sum(queue.lag for queue in progress) == 0


def test_a_reader_reads_what_it_wants_and_leaves_no_trace(namesrv: str) -> None:
    with AdminClient(namesrv) as admin, Producer("p", namesrv=namesrv) as producer:
        admin.create_topic("free", queues=1)
        producer.send_batch(numbered("free", 100))
        between = datetime.now(UTC) + timedelta(milliseconds=5)
        until_sync(lambda: datetime.now(UTC) > between)
        producer.send_batch(numbered("free", 100, 100))
        groups = {group.consumer_group for group in admin.list_groups()}
        with PullConsumer(namesrv=namesrv) as reader:
            (queue,) = reader.fetch_message_queues("free")
            reader.assign([queue])
            reader.seek(queue, 42)
            assert reader.position(queue) == 42
            assert reader.poll(1)[0].body == b"42"
            reader.seek_to_time(between)
            assert reader.poll(1)[0].body == b"100"
            assert Counter(m.body for m in reader.read_to_end()) == bodies(101, 200)
            assert reader.poll(timeout=SOON) == []
            reader.seek_to_begin()
            assert (reader.begin_offsets(), reader.end_offsets()) == ({queue: 0}, {queue: 200})
            assert reader.lag() == {queue: 200}
            for beyond in (-1, 201):
                with raises_code(Code.INVALID_PARAMETER):
                    reader.seek(queue, beyond)
            with raises_code(Code.ILLEGAL_OPERATION):
                reader.commit()
            reader.assign([MessageQueue("free", queue.broker_name, 9)])
            with raises_code(Code.INVALID_PARAMETER):
                reader.poll()
        assert {group.consumer_group for group in admin.list_groups()} == groups


def test_a_loop_commits_message_by_message_and_ends_at_the_close(namesrv: str) -> None:
    with AdminClient(namesrv) as admin, Producer("p", namesrv=namesrv) as producer:
        admin.create_topic("looped", queues=1)
        producer.send_batch(numbered("looped", 20))
    with PullConsumer("looped-g", namesrv=namesrv) as consumer:
        consumer.subscribe("looped")
        for message in consumer:
            if message.queue_offset == 4:
                assert list(consumer.commit().values()) == [5]
            if message.queue_offset == 9:
                break
    consumer = PullConsumer("looped-g", namesrv=namesrv)
    consumer.subscribe("looped")
    consumer.start()
    seen: list[int] = []
    loop = threading.Thread(target=lambda: seen.extend(m.queue_offset for m in consumer))
    loop.start()
    until_sync(lambda: seen_to(consumer) == 20)
    consumer.close()
    loop.join()
    assert seen == list(range(9, 20)), "the message at which the loop ended comes again"


def seen_to(consumer: PullConsumer) -> int:
    """The position in the only queue; -1: there is none yet."""
    return max((consumer.position(queue) for queue in consumer.queues), default=-1)


def test_an_assigned_group_commits_what_its_caller_gives(namesrv: str) -> None:
    with Producer("p", namesrv=namesrv) as producer, AdminClient(namesrv) as admin:
        admin.create_topic("told", queues=1)
        producer.send_batch(numbered("told", 20))
        for first in (0, 7, 14):
            with PullConsumer("told-g", namesrv=namesrv, auto_commit=False) as consumer:
                (queue,) = consumer.fetch_message_queues("told")
                consumer.assign([queue])
                assert consumer.committed() == {queue: first or None}
                messages = consumer.poll(7)
                assert [m.queue_offset for m in messages] == list(range(first, min(20, first + 7)))
                if first < 14:
                    assert consumer.commit() == {queue: first + 7}
        assert not admin.list_clients(group="told-g"), "it takes no part in the group's division"


async def test_conditions_are_decided_by_the_broker(namesrv: str) -> None:
    async with AsyncProducer("p", namesrv=namesrv) as producer:
        sized = [Message("sized", b"%d" % n, properties={"size": str(n)}) for n in range(40)]
        await producer.send_batch(sized)
    async with AsyncPullConsumer("sized-g", namesrv=namesrv) as consumer:
        consumer.subscribe("sized", Sql("size >= 30"))
        assert Counter([m.body async for m in consumer.read_to_end()]) == bodies(30, 40)
        with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
            await consumer.subscribe("sized", Sql("size >"))
    async with AsyncPullConsumer(namesrv=namesrv) as reader:
        queues = await reader.fetch_message_queues("sized")
        reader.assign(queues, Sql("size < 5"))
        assert Counter([m.body async for m in reader.read_to_end()]) == bodies(0, 5)
        reader.assign(queues, Sql("size <"))
        with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
            await reader.poll()


def test_the_other_member_takes_over_from_one_that_is_killed(namesrv: str, tmp_path: Path) -> None:
    """Nothing is lost; what comes twice, the dead one had got since its last commit."""
    with AdminClient(namesrv) as admin, Producer("p", namesrv=namesrv) as producer:
        admin.create_topic("killed", queues=8)
        producer.send_batch(numbered("killed", 1_000))
        output = tmp_path / "member"
        with member(namesrv, "killed-g", "killed", output) as dying:
            until_sync(lambda: len(output.read_bytes().splitlines()) >= 500)
            with PullConsumer("killed-g", namesrv=namesrv) as consumer:
                consumer.subscribe("killed")
                seen = Counter(message.body for message in consumer.poll())
                until_sync(lambda: len(consumer.queues) == 4)
                producer.send_batch(numbered("killed", 1_000, 1_000))
                dying.kill()
                dying.wait()
                before = Counter(output.read_bytes().splitlines())

                def has_all() -> bool:
                    seen.update(message.body for message in consumer.poll(timeout=SOON))
                    return {*seen, *before} >= {*bodies(0, 2_000)}

                until_sync(has_all, timeout_s=60)
                # The dead one may have got all that lay in its queues before it was killed.
                until_sync(lambda: len(consumer.queues) == 8, timeout_s=60)
    assert max(seen.values()) == 1
    assert max(before.values()) == 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """A name server and a broker of the test's own."""
    with namesrv_and_broker(tmp_path) as processes:
        yield processes


async def test_reading_goes_on_through_killed_brokers_and_without_a_name_server(
    cluster: tuple[ServiceProcess, ServiceProcess],
) -> None:
    """A member, which reads in polls, and a reader of all queues, which reads to their ends."""
    namesrv, broker = cluster
    sent: list[bytes] = []
    stop = asyncio.Event()

    async def produce(producer: AsyncProducer) -> None:
        while not stop.is_set():
            batch = numbered("through", 50, len(sent))
            await producer.send_batch(batch)
            sent.extend(message.body for message in batch)

    async def read(consumer: AsyncPullConsumer) -> None:
        while True:
            seen.update(m.body for m in await consumer.poll())

    seen: Counter[bytes] = Counter()
    address = namesrv.address
    async with (
        AsyncProducer("p", namesrv=address, send_timeout=PATIENT) as producer,
        AsyncPullConsumer("through-g", namesrv=address) as consumer,
        AsyncPullConsumer(namesrv=address) as reader,
    ):
        await producer.send_batch([Message("through", b"first")])
        consumer.subscribe("through")
        tasks = [asyncio.create_task(produce(producer)), asyncio.create_task(read(consumer))]
        for _ in range(2):
            before = len(seen)
            await until(lambda before=before: len(seen) > before + 500)  # type: ignore[misc]
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        before = len(seen)
        await asyncio.to_thread(namesrv.kill)
        await until(lambda: len(seen) > before + 500)
        await asyncio.to_thread(namesrv.start)
        stop.set()
        await tasks[0]
        await until(lambda: set(seen) >= {*sent, b"first"}, timeout_s=60)
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        reader.assign(
            await until(lambda: reader.fetch_message_queues("through"), retry_on=(MqError,))
        )
        stored = Counter([message.body async for message in reader.read_to_end()])
    assert set(stored) == {*sent, b"first"}
    assert seen == stored, "each stored message once: no queue was lost, so nothing comes again"
