"""Pulls and acks of several messages, over a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from support.proxy.public_requests import GROUP, TOPIC, VALID, receive
from support.proxy.whole_cluster import WholeCluster

GOOD, BAD = d.Code.OK, d.Code.INVALID_RECEIPT_HANDLE


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[WholeCluster]:
    """With five messages in one queue."""
    cluster = await WholeCluster.begin(tmp_path)
    cluster.topic(TOPIC.name)
    await cluster.broker.group(GROUP.name)
    for number in range(5):
        message = d.Message(topic=TOPIC, body=b"%d" % number)
        message.system_properties.message_id = f"id{number}"
        (sent,) = await cluster.ask("SendMessage", s.SendMessageRequest(messages=[message]))
        assert sent.status.code == GOOD
    yield cluster
    await cluster.end()


async def ack(cluster: WholeCluster, *handles: str) -> list[int]:
    entries = [s.AckMessageEntry(receipt_handle=handle) for handle in handles]
    request = s.AckMessageRequest(topic=TOPIC, group=GROUP, entries=entries)
    (answer,) = await cluster.ask("AckMessage", request)
    assert [entry.receipt_handle for entry in answer.entries] == list(handles)
    return [entry.status.code for entry in answer.entries]


async def test_pull_has_messages_and_next_offset(cluster: WholeCluster) -> None:
    first, *messages, last = await cluster.ask("PullMessage", VALID["PullMessage"](""))
    assert first.status.code == GOOD
    found = [(m.message.body, m.message.system_properties.queue_offset) for m in messages]
    assert found == [(b"%d" % number, number) for number in range(5)]
    assert last.next_offset == 5


async def test_handle_twice_in_one_ack(cluster: WholeCluster) -> None:
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
