"""What leases hold in memory grows with what is under way, not with what was settled."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Sequence

from aerobee_broker.delivery.pop.expiry import Due, LeaseExpiry
from aerobee_broker.delivery.pop.in_flight import Lease, QueueLeases
from aerobee_broker.delivery.pop.lease_table import GroupLeases
from support.clock.virtual_loop import LoopClock

A_POP = 32
HOURS_12_MS = 43_200_000


async def test_one_message_that_stays_open_does_not_keep_the_settled_ones_in_memory() -> None:
    place, queue = GroupLeases("billing", "orders"), QueueLeases(0, 0)
    ended: list[int] = []

    async def note(due: Sequence[Due]) -> None:
        for _, of, held in due:
            ended.append(held.offset)
            of.expire(held)

    clock = LoopClock()
    expiry = LeaseExpiry(clock, note)
    expiry.start()

    def lease(count: int) -> Lease:
        lease = Lease(queue.cursor + 1, 0, HOURS_12_MS, clock.monotonic_ms() + HOURS_12_MS)
        offsets = [held.offset for held in queue.lease_new(count, lease)]
        queue.passed.clear()
        expiry.watch_all(place, queue, offsets, lease.deadline_ms)
        return lease

    def rounds(count: int) -> int:
        for _ in range(count):
            offsets = range(queue.cursor, queue.cursor + A_POP)
            lease_id = lease(A_POP).lease_id
            _, settled, others = queue.acknowledge_all(offsets, lease_id, 0)
            assert len(settled) == A_POP and not others
            assert queue.committed == 0
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    lease(1)
    tracemalloc.start()
    try:
        before = rounds(300)
        grown = rounds(1_000) - before
    finally:
        tracemalloc.stop()
    assert grown / (1_000 * A_POP) < 5, "bytes a message"
    await asyncio.sleep(HOURS_12_MS / 1000 + 1)
    assert ended == [0]
    await expiry.stop()
