"""Where groups are, over a cluster in memory: what a move and a forgetting check first."""

from __future__ import annotations

from typing import Any

import pytest
from aerobee.broker.v1 import offset_pb2, pop_pb2

from aerobee_client import AsyncAdminClient, MqError
from aerobee_wire.status import Code
from support.client.memory import MemoryBroker, MemoryCluster
from support.codes import raises_code

TOPIC = "orders"


async def test_an_offset_beyond_every_queue_is_no_reset(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    """A time in milliseconds that was meant as such, and would skip every message."""
    brokers[1].append(TOPIC, 1, b"x", b"")
    asked: list[str] = []

    def reset(address: str, request: Any) -> Any:
        asked.append(address)
        return offset_pb2.ResetConsumerOffsetsResponse()

    cluster.answers["ResetConsumerOffsets"] = reset
    with raises_code(Code.INVALID_PARAMETER):
        await admin.reset_offsets("g", TOPIC, queue_offset=1_748_736_000_000)
    assert asked == []
    await admin.reset_offsets("g", TOPIC, queue_offset=1)
    assert len(asked) == 2


async def test_blocked_message_groups_that_a_broker_does_not_list_are_counted(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    def blocked(address: str, request: Any) -> Any:
        response = pop_pb2.ListBlockedMessageGroupsResponse(total=1)
        response.groups.add(topic=TOPIC, message_id="A1")
        if cluster.brokers[address].name == "b":
            response.total = 7
        return response

    cluster.answers["ListBlockedMessageGroups"] = blocked
    omitted: dict[str, int] = {}
    assert len(await admin.blocked_message_groups("g", omitted=omitted)) == 2
    assert omitted == {"b": 6}
    with pytest.raises(MqError, match="no listed message group"):
        await admin.skip_message("g", "A2")


async def test_offsets_are_forgotten_on_all_brokers_or_none(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    consumes, done = {"b"}, []

    def forget(address: str, request: Any) -> Any:
        name = cluster.brokers[address].name
        if name in consumes:
            raise MqError(Code.ILLEGAL_OPERATION, "a member consumes the topic")
        done.append((name, request.dry_run))
        response = offset_pb2.ForgetConsumerOffsetsResponse()
        response.offsets.add(topic=request.topic, queue_id=0, queue_offset=8)
        return response

    cluster.answers["ForgetConsumerOffsets"] = forget
    with raises_code(Code.ILLEGAL_OPERATION):
        await admin.forget_offsets("g", TOPIC)
    assert all(dry_run for _, dry_run in done)
    consumes.clear()
    done.clear()
    gone = await admin.forget_offsets("g", TOPIC)
    assert [(each.broker_name, each.queue_offset) for each in gone] == [("a", 8), ("b", 8)]
    assert done == [("a", True), ("b", True), ("a", False), ("b", False)]
