"""Broadcasting: each member gets each message, has its own offsets, and passes failures over."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aerobee.broker.v1 import client_pb2

from aerobee_client.consume_result import DeadLetter, ReconsumeLater
from aerobee_client.consuming import concurrent_consumption, membership
from aerobee_client.consuming.offset_file import decode
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import ConsumeFromWhere, ConsumerOptions, MessageModel
from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire.status import Code
from support.client.consumer_group import GROUP, RETRY, TOPIC, Join, fill, owned
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.clock.polling import until
from support.codes import raises_code

BROADCASTING: dict[str, Any] = {"message_model": MessageModel.BROADCASTING}
FROM_FIRST: dict[str, Any] = {
    **BROADCASTING,
    "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
}


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


class Listener:
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def __call__(self, message: ReceivedMessage) -> None:
        self.seen.append(message.body)


async def test_every_member_owns_every_queue_and_gets_every_message(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join
) -> None:
    first, second = Listener(), Listener()
    members = [await join(each, **FROM_FIRST) for each in (first, second)]
    fill(broker, 100)
    await broker.wake()
    await until(lambda: len(first.seen) == len(second.seen) == 100)
    assert sorted(first.seen) == sorted(second.seen) == sorted(bodies(100))
    assert [owned(member) for member in members] == [{0, 1, 2, 3}] * 2
    for member in members:
        await member.close()
    assert broker.offsets == {}, "the brokers know no offset, so no lag"
    assert not any(pull.HasField("commit_offset") for pull in cluster.requests("Pull"))
    assert {pull.topic for pull in cluster.requests("Pull")} == {TOPIC}, "no retry topic"
    (consumer,) = cluster.requests("Heartbeat")[0].consumers
    assert consumer.message_model == client_pb2.BROADCASTING


async def test_it_begins_behind_the_newest_message(broker: MemoryBroker, join: Join) -> None:
    """Also in a young topic: a broadcasting member has no progress to miss."""
    fill(broker, 8)
    listener = Listener()
    await join(listener, **BROADCASTING)
    fill(broker, 4)
    await broker.wake()
    await until(lambda: len(listener.seen) == 4)


async def test_it_misses_nothing_of_a_topic_that_comes_later(
    broker: MemoryBroker, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "REBALANCE_RETRY_S", 0.05)
    listener = Listener()
    consumer = AsyncPushConsumer(
        GROUP, listener, namesrv=NAMESRV, transport=cluster, **BROADCASTING
    )
    consumer.subscribe("later")
    async with consumer:
        broker.create("later", 2)
        asked: list[int] = []
        cluster.answers["SearchOffset"] = lambda _, request: asked.append(request.timestamp_ms)
        await until(lambda: len(asked) == 2)
    assert min(asked) > 1_700_000_000_000, "from the time at which it joined"


async def test_a_change_of_the_subscription_goes_on_where_it_was(
    broker: MemoryBroker, join: Join
) -> None:
    listener = Listener()
    consumer = await join(listener, **FROM_FIRST)
    fill(broker, 8)
    await broker.wake()
    await until(lambda: len(listener.seen) == 8)
    consumer.subscribe(TOPIC, "*")
    fill(broker, 8)
    await until(lambda: len(listener.seen) >= 16)
    assert len(listener.seen) == 16


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_failure_is_tried_in_place_and_then_passed_over(
    broker: MemoryBroker,
    cluster: MemoryCluster,
    join: Join,
    monkeypatch: pytest.MonkeyPatch,
    attempts: int,
) -> None:
    monkeypatch.setattr(concurrent_consumption, "CONSUME_AGAIN_S", 0.01)
    tried: list[tuple[bytes, int]] = []

    def listen(message: ReceivedMessage) -> None:
        tried.append((message.body, message.reconsume_times))
        if message.body == b"0":
            raise ValueError("never")

    await join(listen, **FROM_FIRST, broadcast_attempts=attempts)
    fill(broker, 8)
    await broker.wake()
    await until(lambda: len(tried) >= 7 + attempts)
    assert [times for body, times in tried if body == b"0"] == list(range(attempts))
    assert len(tried) == 7 + attempts
    assert cluster.requests("SendBack") == [] and broker.messages(RETRY) == []


async def test_verdicts_decide_when_and_whether_it_is_tried_again(
    broker: MemoryBroker, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent_consumption, "CONSUME_AGAIN_S", 60)
    tried: list[bytes] = []

    def listen(message: ReceivedMessage) -> None:
        tried.append(message.body)
        if message.body == b"0":
            raise DeadLetter("hopeless")
        if tried.count(b"1") < 10:
            raise ReconsumeLater(delay=timedelta(milliseconds=5), counted=False)

    await join(listen, **FROM_FIRST, broadcast_attempts=2)
    fill(broker, 2)
    await broker.wake()
    await until(lambda: tried.count(b"1") == 10)
    assert tried.count(b"0") == 1


async def test_offsets_in_a_file_outlive_the_member(
    broker: MemoryBroker, join: Join, tmp_path: Path
) -> None:
    path = tmp_path / "offsets.json"
    fill(broker, 40)
    first = Listener()
    consumer = await join(first, **FROM_FIRST, offset_file=path)
    await until(lambda: len(first.seen) == 40)
    await consumer.close()
    assert decode(path.read_text()) == {MessageQueue(TOPIC, "a", n): 10 for n in range(4)}
    fill(broker, 4)
    second = Listener()
    await join(second, **FROM_FIRST, offset_file=path)
    await until(lambda: len(second.seen) == 4)


async def test_offsets_in_a_file_are_written_in_the_background(
    broker: MemoryBroker, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "COMMIT_INTERVAL_S", 0.02)
    path = tmp_path / "offsets.json"
    await join(print, **FROM_FIRST, offset_file=path)
    fill(broker, 8)
    await broker.wake()
    await until(lambda: path.exists() and set(decode(path.read_text()).values()) == {2})


async def test_a_second_member_with_the_same_file_is_refused(
    broker: MemoryBroker, join: Join, tmp_path: Path
) -> None:
    path = tmp_path / "offsets.json"
    first = await join(print, **BROADCASTING, offset_file=path)
    with raises_code(Code.ILLEGAL_OPERATION):
        await join(print, **BROADCASTING, offset_file=path)
    assert broker.members(GROUP) and len(owned(first)) == 4
    await first.close()
    await join(print, **BROADCASTING, offset_file=path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset_file": "offsets.json"},
        {"broadcast_attempts": 2},
        {**BROADCASTING, "broadcast_attempts": 0},
        {**BROADCASTING, "max_reconsume_times": 3},
    ],
)
def test_options_of_the_other_model_are_refused(wrong: dict[str, Any]) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        ConsumerOptions(**wrong)
