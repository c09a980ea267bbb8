"""Each allocation strategy against real processes: two members own all queues and no queue twice,
and consume every message; a group that differs in its strategy is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    Message,
    MessageQueue,
    rebalance,
)
from aerobee_client.admin.descriptions import member_conflicts
from support.clock.polling import until
from support.processes.command import aerobee
from support.processes.service import ServiceProcess, namesrv_and_brokers

ROOMS = ("east", "west")
BROKERS = tuple(f"{room}@broker" for room in ROOMS)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ServiceProcess]]:
    """The address of a name server, and the first of two brokers in two machine rooms."""
    data: Path = tmp_path_factory.mktemp("rooms")
    with namesrv_and_brokers(data, names=BROKERS) as (namesrv, brokers):
        yield namesrv.address, brokers[BROKERS[0]]


def config_of(topic: str, member: int) -> rebalance.Strategy:
    return rebalance.config([MessageQueue(topic, BROKERS[member], n) for n in range(4)])


STRATEGIES: dict[str, Any] = {
    "AVG": "AVG",
    "AVG_BY_CIRCLE": rebalance.average_by_circle,
    "CONSISTENT_HASH": "CONSISTENT_HASH",
    "CONFIG": config_of,
    "MACHINE_ROOM": rebalance.machine_room(ROOMS),
    "MACHINE_ROOM_NEARBY": "MACHINE_ROOM_NEARBY",
}


@pytest.mark.parametrize("name", STRATEGIES)
async def test_the_members_share_all_queues(rooms: tuple[str, ServiceProcess], name: str) -> None:
    address, _ = rooms
    topic, group = f"t-{name}", f"g-{name}"
    seen: list[bytes] = []
    given = STRATEGIES[name]
    members = [
        AsyncPushConsumer(
            group,
            lambda message: seen.append(message.body),
            namesrv=address,
            strategy=given(topic, n) if given is config_of else given,
            machine_room=ROOMS[n],
        )
        for n in range(2)
    ]
    for member in members:
        member.subscribe(topic)

    # A hash ring leaves a member without any of 8 queues in a hundredth of all pairs of client ids,
    # and without any of 32 in less than a hundred-thousandth.
    queues = 16 if name == "CONSISTENT_HASH" else 4

    def shares() -> list[set[MessageQueue]]:
        return [{queue for queue in each.queues if queue.topic == topic} for each in members]

    def settled() -> bool:
        """The first has all queues until it learns of the second."""
        first, second = shares()
        return bool(second) and len(first) + len(second) == len(first | second) == 2 * queues

    async with AsyncAdminClient(address) as admin, AsyncProducer(namesrv=address) as producer:
        await admin.create_topic(topic, queues=queues)
        async with members[0], members[1]:
            await until(settled, timeout_s=40)
            first, second = shares()
            if name in ("CONFIG", "MACHINE_ROOM_NEARBY"):
                assert {queue.broker_name for queue in first} == {BROKERS[0]}
                assert {queue.broker_name for queue in second} == {BROKERS[1]}
            elif name != "CONSISTENT_HASH":
                assert len(first) == len(second) == 4
            sent = [b"%d" % n for n in range(200)]
            await producer.send_batch([Message(topic, body) for body in sent])
            await until(lambda: sorted(seen) == sorted(sent))
            described = await admin.list_clients(group)
            strategies = {each.consumers[group].strategy for each in described}
            assert strategies == {rebalance.name_of(members[0].options.allocation())}
            assert member_conflicts(described, group) == []


async def test_members_with_different_strategies_are_reported(
    rooms: tuple[str, ServiceProcess],
) -> None:
    address, broker = rooms
    members = [
        AsyncPushConsumer("differ-g", print, namesrv=address, strategy=strategy)
        for strategy in ("AVG", "CONSISTENT_HASH")
    ]
    for member in members:
        member.subscribe("differ")
    async with AsyncAdminClient(address) as admin:
        await admin.create_topic("differ", queues=4)
        async with members[0], members[1]:
            await until(lambda: broker.events("members_differ"))
            shown = aerobee("group", "members", "differ-g", namesrv=address)
            found = aerobee("doctor", namesrv=address)
    assert broker.events("members_differ")[0]["found"] == ["AVG", "CONSISTENT_HASH"]
    assert "warning" in shown.stderr and "CONSISTENT_HASH" in shown.stdout
    assert "differ-g" in found.stdout


async def test_pull_consumers_divide_by_rooms_too(rooms: tuple[str, ServiceProcess]) -> None:
    address, _ = rooms
    topic = "t-pulled-rooms"
    async with AsyncAdminClient(address) as admin, AsyncExitStack() as stack:
        await admin.create_topic(topic, queues=4)
        members = [
            AsyncPullConsumer(
                "g-pulled-rooms", namesrv=address, strategy="MACHINE_ROOM_NEARBY", machine_room=room
            )
            for room in ROOMS
        ]
        for member in members:
            member.subscribe(topic)
            await stack.enter_async_context(member)
        near = [{MessageQueue(topic, name, n) for n in range(4)} for name in BROKERS]
        await until(lambda: [member.queues for member in members] == near, timeout_s=40)


async def test_simple_consumers_receive_near_by(rooms: tuple[str, ServiceProcess]) -> None:
    """Each gets what the broker of its room stores; when one leaves, a receive that waits already
    brings what its room gets from then on."""
    address, _ = rooms
    topic = "t-leased-rooms"
    async with (
        AsyncAdminClient(address) as admin,
        AsyncProducer(namesrv=address) as producer,
        AsyncExitStack() as stack,
    ):
        await admin.create_topic(topic, queues=4)
        queues = [MessageQueue(topic, name, 0) for name in BROKERS]
        members = [
            await stack.enter_async_context(
                AsyncSimpleConsumer("g-leased-rooms", namesrv=address, machine_room=room)
            )
            for room in ROOMS
        ]
        for member in members:
            member.subscribe(topic)
        await asyncio.gather(*(member.receive(1, wait=timedelta(0)) for member in members))

        async def divided() -> bool:
            """Whether each knows of the other by now."""
            for queue in queues:
                await producer.send_batch(
                    [Message(topic, queue.broker_name.encode())] * 4, queue=queue
                )
            right = True
            for member, queue in zip(members, queues, strict=True):
                while found := await member.receive(32, wait=timedelta(0)):
                    right = right and {each.body.decode() for each in found} == {queue.broker_name}
                    await member.ack(found)
            return right

        while not await divided():
            pass
        waiting = asyncio.create_task(members[0].receive(32, wait=timedelta(minutes=1)))
        await members[1].close()
        await producer.send(Message(topic, b"left"), queue=queues[1])
        assert [message.body for message in await waiting] == [b"left"]
