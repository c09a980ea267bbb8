from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from support.client.leasing import LEASE, NO_WAIT, Leasing, seconds, deliveries


async def ticks(n):
    for _ in range(n):
        await asyncio.sleep(0)

@pytest.mark.parametrize("how", ["cancel", "close", "both"])
@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_scan(two, fifo, late, how):
    for n in range(0, 60):
        consumer = two.consumer(fifo=fifo)
        await consumer.start()
        bodies = [b"%d-%d" % (n, i) for i in range(4)]
        if not late:
            await two.send(*bodies, to="a")
        waiting = asyncio.create_task(consumer.receive(32, LEASE, seconds(5)))
        if late:
            await asyncio.sleep(0.5)
            sending = asyncio.create_task(two.send(*bodies, to="a"))
        await ticks(n)
        if how != "close":
            waiting.cancel()
        if how != "cancel":
            await consumer.close()
        got = []
        try:
            m = await waiting
            got = deliveries(m)
            if how == "cancel":
                await consumer.ack(m)
            else:
                async with two.consumer(fifo=fifo) as c2:
                    await c2.ack(m)
        except (asyncio.CancelledError, Exception) as e:
            pass
        if late:
            await sending
        if how == "cancel":
            await asyncio.sleep(0.01)
            await consumer.close()
        other = await two.started(fifo=fifo)
        m = await other.receive(32, LEASE, seconds(1))
        await other.ack(m)
        got += deliveries(m)
        while m:
            m = await other.receive(32, LEASE, NO_WAIT)
            await other.ack(m); got += deliveries(m)
        assert sorted(got) == [(b, 1) for b in bodies], (n, got)
        await other.close()
