"""Pulls and acks of several messages, over a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from apache.rocketmq.v2 import definition_pb2 as d
from apache.rocketmq.v2 import service_pb2 as s

from support.clock.virtual_loop import VirtualLoop
from support.proxy.public_requests import GROUP, TOPIC, VALID, receive
from support.proxy.whole_cluster import WholeCluster

GOOD, BAD = d.Code.OK, d.Code.INVALID_RECEIPT_HANDLE


def over_messages(path: Path, count: int, body: Callable[[WholeCluster], Awaitable[None]]) -> None:
    """Runs `body` on a cluster with `count` messages in one queue."""

    async def main() -> None:
        cluster = await WholeCluster.begin(path)
        cluster.topic(TOPIC.name)
        await cluster.broker.group(GROUP.name)
        for number in range(count):
            message = d.Message(topic=TOPIC, body=b"%d" % number)
            message.system_properties.message_id = f"id{number}"
            (sent,) = await cluster.ask("SendMessage", s.SendMessageRequest(messages=[message]))
            assert sent.status.code == GOOD
        await body(cluster)
        await cluster.end()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


async def ack(cluster: WholeCluster, *handles: str) -> list[int]:
    entries = [s.AckMessageEntry(receipt_handle=handle) for handle in handles]
    request = s.AckMessageRequest(topic=TOPIC, group=GROUP, entries=entries)
    (answer,) = await cluster.ask("AckMessage", request)
    assert [entry.receipt_handle for entry in answer.entries] == list(handles)
    return [entry.status.code for entry in answer.entries]


def test_pull_has_messages_and_next_offset(tmp_path: Path) -> None:
    async def body(cluster: WholeCluster) -> None:
        first, *messages, last = await cluster.ask("PullMessage", VALID["PullMessage"](""))
        assert first.status.code == GOOD
        assert [response.message.body for response in messages] == [b"0", b"1", b"2"]
        assert [response.message.system_properties.queue_offset for response in messages] == [
            0,
            1,
            2,
        ]
        assert last.next_offset == 3

    over_messages(tmp_path, 3, body)


def test_handle_twice_in_one_ack(tmp_path: Path) -> None:
    async def body(cluster: WholeCluster) -> None:
        answers = await cluster.ask("ReceiveMessage", receive(batch_size=16))
        handles = [response.message.system_properties.receipt_handle for response in answers[1:-1]]
        assert len(handles) == 5
        a, b, c, *rest = handles
        damaged = a[:-1] + ("A" if a[-1] != "A" else "E")
        assert await ack(cluster, b, a, damaged, b, a) == [GOOD, GOOD, BAD, GOOD, GOOD]
        assert await ack(cluster, b, c) == [GOOD, GOOD]
        (committed,) = await cluster.ask("GetOffset", VALID["GetOffset"](""))
        assert committed.offset == 3
        assert await ack(cluster, *rest) == [GOOD, GOOD]

    over_messages(tmp_path, 5, body)
