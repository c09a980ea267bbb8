"""Polls and loops of the plain class that an interrupt ends, at each of their lines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.pull_consumer import AsyncPullConsumer, PullConsumer
from aerobee_client.runtime.facade import StartedFacade
from aerobee_wire.status import Code
from support.client.consumer_group import TOPIC, fill
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.codes import raises_code
from support.interrupts import interrupted_at

FILES = ("runtime/facade.py", "runtime/loop_thread.py", "/pull_consumer.py", "pulling/unread.py")
COUNT = 400
LATE = timedelta(seconds=10)


class PlainReader(PullConsumer):
    """A plain class over a cluster in memory, which has one queue of TOPIC."""

    def __init__(self, cluster: MemoryCluster) -> None:
        client = AsyncPullConsumer(namesrv=NAMESRV, transport=cluster)
        client.assign([MessageQueue(TOPIC, "a", 0)])
        StartedFacade.__init__(self, client, "test loop")


@pytest.fixture
def reader(broker: MemoryBroker, cluster: MemoryCluster) -> Iterator[PlainReader]:
    broker.topics[TOPIC] = 1
    fill(broker, COUNT)
    with PlainReader(cluster) as reader:
        assert reader.poll(1, LATE)  # the first messages are pulled
        yield reader


def poll(reader: PlainReader, got: list[ReceivedMessage]) -> None:
    got += reader.poll(2, LATE)


def loop(reader: PlainReader, got: list[ReceivedMessage]) -> None:
    left = 3
    for message in reader:
        got.append(message)
        left -= 1
        if not left:
            break


def test_a_loop_that_closes_its_reader_ends(reader: PlainReader) -> None:
    seen = 0
    for _ in reader:
        seen += 1
        reader.close()
    assert 0 < seen <= COUNT
    with raises_code(Code.ILLEGAL_OPERATION):
        next(iter(reader))


@pytest.mark.parametrize("read", [poll, loop])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_read_loses_and_repeats_no_message(
    reader: PlainReader, read: Callable[[PlainReader, list[ReceivedMessage]], None]
) -> None:
    got: list[ReceivedMessage] = []
    for line in itertools.count():
        with interrupted_at(line, *FILES) as places:
            try:
                read(reader, got)
            except KeyboardInterrupt:
                assert places
        offsets = [message.queue_offset for message in got]
        assert offsets == list(range(1, len(got) + 1)), places
        if not places:
            break
    assert line > 20


async def test_poll_that_is_cancelled_in_any_turn_loses_and_repeats_no_message(
    broker: MemoryBroker, cluster: MemoryCluster
) -> None:
    broker.topics[TOPIC] = 1
    got: list[ReceivedMessage] = []
    async with AsyncPullConsumer(namesrv=NAMESRV, transport=cluster) as consumer:
        consumer.assign([MessageQueue(TOPIC, "a", 0)])
        for turns in range(40):
            fill(broker, 2)
            await broker.wake()
            polling = asyncio.create_task(consumer.poll(2, LATE))
            for _ in range(turns % 20):
                await asyncio.sleep(0)
            polling.cancel()
            [outcome] = await asyncio.gather(polling, return_exceptions=True)
            got += outcome if isinstance(outcome, list) else []
        while len(got) < 80:
            messages = await consumer.poll(8, LATE)
            assert messages, len(got)
            got += messages
    assert [message.queue_offset for message in got] == list(range(80))
