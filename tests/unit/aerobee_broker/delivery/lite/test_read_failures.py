"""Lite topics on a disk that fails a read now and then: what is ready for a client stays so."""

from __future__ import annotations

import asyncio
import errno

import pytest

from aerobee_broker.errors import TransientReadError
from aerobee_broker.store.lite.lite_queue import LiteQueue
from aerobee_broker.store.log.commit_log import CommitLog
from support.broker.harness import Begin, BrokerHarness
from support.lite.broker_client import (
    ADD,
    REPLACE,
    LiteConsumer,
    bind,
    bodies,
    make_parent,
    send_lite,
)


async def upkeep(harness: BrokerHarness) -> None:
    await asyncio.sleep(10)
    harness.broker.lite.state.maintain()


@pytest.mark.parametrize("during", ["arrival", "receive", "end of a lease"])
async def test_a_wildcard_group_gets_a_message_that_could_not_be_read_before(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    """Only its record tells the name of its lite topic."""
    harness = await begin()
    await make_parent(harness)
    await bind(harness, wildcard="true")
    consumer = LiteConsumer(harness)
    await consumer.sync(REPLACE)

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        if during == "arrival":
            patch.setattr(CommitLog, "read", fail)
        await send_lite(harness, "a", b"1")
        if during == "end of a lease":
            assert bodies(await consumer.pop(invisible_ms=1_000)) == [b"1"]
        patch.setattr(CommitLog, "read", fail)
        if during == "receive":
            with pytest.raises(TransientReadError):
                await consumer.pop()
        await upkeep(harness)
    receiving = asyncio.create_task(consumer.pop(poll_ms=20_000))
    await upkeep(harness)
    assert bodies(await receiving) == [b"1"]


async def test_a_message_whose_arrival_could_not_be_taken_in_is_delivered_without_another_one(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await begin()
    await make_parent(harness)
    await bind(harness)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a", "b")
    await send_lite(harness, "b", b"0")
    got = await consumer.pop()
    assert bodies(got) == [b"0"] and not any(await consumer.ack(got))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patch:
        patch.setattr(LiteQueue, "_extend", fail)
        await send_lite(harness, "a", b"1")
        await upkeep(harness)
    receiving = asyncio.create_task(consumer.pop(poll_ms=20_000))
    await upkeep(harness)
    assert bodies(await receiving) == [b"1"]
