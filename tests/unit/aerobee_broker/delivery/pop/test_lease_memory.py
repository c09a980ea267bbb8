"""Memory of leases grows with the messages in flight, not with those settled."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from aerobee_broker.delivery.pop.expiry import LeaseDeadlines
from aerobee_broker.delivery.pop.in_flight import InFlightQueue, Lease
from support.clock.virtual_loop import LoopClock

MESSAGES_PER_POP = 32
HOURS_12_MS = 43_200_000


async def test_a_message_in_flight_keeps_no_settled_ones_in_memory() -> None:
    clock = LoopClock()
    queue, deadlines = InFlightQueue("billing", "orders", 0), LeaseDeadlines(clock)

    def lease(count: int) -> Lease:
        deadline_ms = clock.monotonic_ms() + HOURS_12_MS
        lease = Lease(queue.cursor + 1, deadline_ms, HOURS_12_MS, 0)
        offsets = [message.offset for message in queue.lease_new(count, lease)]
        queue.opened_since_journal.clear()
        deadlines.watch_all(queue, offsets, lease.deadline_ms)
        return lease

    def rounds(count: int) -> int:
        for _ in range(count):
            offsets = range(queue.cursor, queue.cursor + MESSAGES_PER_POP)
            acknowledged = queue.acknowledge(offsets, lease(MESSAGES_PER_POP).lease_id, 0)
            assert len(acknowledged.settled) == MESSAGES_PER_POP and not acknowledged.invalid
            assert queue.committed_offset == 0
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    lease(1)
    tracemalloc.start()
    try:
        before = rounds(300)
        grown = rounds(1_000) - before
    finally:
        tracemalloc.stop()
    assert grown / (1_000 * MESSAGES_PER_POP) < 5, "bytes a message"
    await asyncio.sleep(HOURS_12_MS / 1000 + 1)
    assert [leased.message.offset for leased in deadlines.take_expired()] == [0]
