"""A simple consumer with a machine room receives near by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_client.options.lease_consumer import SimpleConsumerOptions
from aerobee_wire.status import Code
from support.client.leasing import LEASE, NO_WAIT, Leasing, bodies, seconds
from support.codes import raises_code


@pytest.fixture
async def rooms(tmp_path: Path) -> AsyncIterator[Leasing]:
    leasing = await Leasing.begin(tmp_path, "east@a", "west@b")
    yield leasing
    await leasing.end()


async def test_members_receive_from_the_brokers_of_their_room(rooms: Leasing) -> None:
    east = await rooms.started(machine_room="east")
    west = await rooms.started(machine_room="west")
    await rooms.send(*[b"e"] * 8, to="east@a")
    await rooms.send(*[b"w"] * 8, to="west@b")
    await asyncio.sleep(1)
    for consumer, body in ((east, b"e"), (west, b"w")):
        found = await consumer.receive(32, LEASE, NO_WAIT)
        assert bodies(found) == [body] * 8
        await consumer.ack(found)
        assert await consumer.receive(32, LEASE, NO_WAIT) == []


async def test_a_room_without_members_is_everybodys(rooms: Leasing) -> None:
    east = await rooms.started(machine_room="east")
    await rooms.send(b"w", to="west@b")
    [message] = await east.receive(32, LEASE, NO_WAIT)
    await east.ack(message)
    west = await rooms.started(machine_room="west")
    await asyncio.sleep(1)
    await rooms.send(b"w", to="west@b")
    assert await east.receive(32, LEASE, seconds(2)) == []
    assert bodies(await west.receive(32, LEASE, NO_WAIT)) == [b"w"]


async def test_a_receive_that_waits_takes_over_the_room_of_a_member_that_leaves(
    rooms: Leasing,
) -> None:
    east = await rooms.started(machine_room="east")
    west = await rooms.started(machine_room="west")
    await asyncio.sleep(1)
    waiting = asyncio.create_task(east.receive(32, LEASE, seconds(3_600)))
    await asyncio.sleep(30)
    await west.close()
    await asyncio.sleep(1)
    await rooms.send(b"w", to="west@b")
    async with asyncio.timeout(5):
        assert bodies(await waiting) == [b"w"]


async def test_a_held_call_brings_nothing_of_a_room_that_has_a_member_now(rooms: Leasing) -> None:
    east = await rooms.started(machine_room="east")
    waiting = asyncio.create_task(east.receive(32, LEASE, seconds(60)))
    await asyncio.sleep(25)
    west = await rooms.started(machine_room="west")
    await asyncio.sleep(21)  # the call that was held at the other room has ended
    await rooms.send(b"w", to="west@b")
    assert bodies(await west.receive(32, LEASE, seconds(5))) == [b"w"]
    assert await waiting == []


async def test_without_a_broker_near_by_nothing_comes(rooms: Leasing) -> None:
    south = await rooms.started(machine_room="south")
    await rooms.started(machine_room="east")
    await rooms.started(machine_room="west")
    await asyncio.sleep(1)
    await rooms.send(b"e", to="east@a")
    began_s = asyncio.get_running_loop().time()
    assert await south.receive(32, LEASE, seconds(5)) == []
    assert asyncio.get_running_loop().time() - began_s >= 5


async def test_a_look_that_no_broker_answers_changes_nothing(rooms: Leasing) -> None:
    east = await rooms.started(machine_room="east")
    await rooms.started(machine_room="west")
    await asyncio.sleep(1)
    looks = rooms.transport.count("ListGroupMembers")
    rooms.transport.lost["ListGroupMembers"] = 1_000
    await asyncio.sleep(60)
    assert rooms.transport.count("ListGroupMembers") > looks
    await rooms.send(b"w", to="west@b")
    await rooms.send(b"e", to="east@a")
    assert bodies(await east.receive(32, LEASE, seconds(5))) == [b"e"]
    assert await east.receive(32, LEASE, NO_WAIT) == []


def test_a_room_is_a_part_of_a_client_id() -> None:
    for name in ("a@b", "ü", "a\n"):
        with raises_code(Code.INVALID_PARAMETER):
            SimpleConsumerOptions(machine_room=name)
