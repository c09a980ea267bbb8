"""Messages in flight: every transition of the table happens and no other; the memory they take."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from functools import partial

import pytest

from aerobee_broker.delivery.pop.expiry import LeaseDeadlines
from aerobee_broker.delivery.pop.in_flight import (
    TRANSITIONS,
    Event,
    InFlightMessage,
    InFlightQueue,
    Lease,
    State,
)
from support.clock.virtual_loop import LoopClock

LEASE = Lease(lease_id=1, deadline_ms=1_000, expires_ms=5_000, pop_time_ms=4_000)
MESSAGES_PER_POP = 32
HOURS_12_MS = 43_200_000


class World:
    """Three messages of one message group, all on one lease; the events are those of the second."""

    def __init__(self) -> None:
        self.queue = InFlightQueue("billing", "orders", 0, fifo=True)
        self.earlier, self.message, self.later = self.opened = [
            self.queue.open_message(offset, "group") for offset in range(3)
        ]
        self.queue.cursor = 3
        self.roll_back: Callable[[], None] = lambda: None
        self.invalid: list[int] = []
        self.lease(*self.opened)

    def lease(self, *messages: InFlightMessage) -> None:
        for message in messages:
            self.queue.lease(message, LEASE)

    def expire(self, *messages: InFlightMessage) -> None:
        for message in messages:
            self.queue.expire(message)

    def ack(self, *messages: InFlightMessage) -> None:
        offsets = [message.offset for message in messages]
        ended, settled, self.invalid = self.queue.acknowledge(offsets, LEASE.lease_id, now_ms=0)
        self.roll_back = partial(self.queue.roll_back_settlement, ended, settled)


# How a message gets into each state.
BEGIN: dict[State, Callable[[World], object]] = {
    State.VISIBLE: lambda world: world.expire(*world.opened),
    State.INVISIBLE: lambda world: None,
    State.ACKED: lambda world: world.ack(world.message),
    State.SETTLED: lambda world: world.ack(*world.opened),
}
EVENTS: dict[Event, Callable[[World], object]] = {
    Event.LEASE: lambda world: world.lease(*world.queue.next_visible()),
    Event.ACK: lambda world: world.ack(world.earlier, world.message),
    Event.ACK_BEHIND: lambda world: world.ack(world.message),
    Event.FRONT_SETTLED: lambda world: world.ack(world.earlier),
    Event.EXPIRE: lambda world: world.expire(world.message),
    Event.GROUP_EXPIRED: lambda world: world.expire(world.earlier, world.later),
    Event.UNGROUPED: lambda world: world.queue.regroup(None),
    Event.DROP: lambda world: world.queue.drop(world.message),
    Event.RESET: lambda world: world.queue.reset(0),
    Event.LEASE_ROLLED_BACK: lambda world: world.queue.roll_back_leases(world.opened, None),
    Event.ACK_ROLLED_BACK: lambda world: world.roll_back(),
    Event.FRONT_ROLLED_BACK: lambda world: world.roll_back(),
}
WALKED = [(state, event) for state, events in TRANSITIONS.items() for event in events]


def world_in(state: State) -> World:
    world = World()
    BEGIN[state](world)
    assert world.message.state is state
    return world


@pytest.mark.parametrize(("state", "event"), WALKED)
def test_an_event_leads_where_the_table_says(state: State, event: Event) -> None:
    world = world_in(state)
    if event is Event.FRONT_ROLLED_BACK:  # settled by the acknowledgement of an earlier message
        world = world_in(State.ACKED)
        roll_back_own_ack = world.roll_back
        world.ack(world.earlier)
        if state is State.INVISIBLE:
            roll_back_own_ack()
    EVENTS[event](world)
    after = TRANSITIONS[state][event]
    assert world.message.state is after
    assert (world.message.offset in world.queue.in_flight) is (after is not State.SETTLED)


def test_every_event_is_in_the_table() -> None:
    assert {event for _, event in WALKED} == set(Event) == set(EVENTS)
    assert set(TRANSITIONS) == set(State) == set(BEGIN)


@pytest.mark.parametrize("state", [State.VISIBLE, State.ACKED, State.SETTLED])
def test_only_a_message_on_lease_is_acknowledged(state: State) -> None:
    world = world_in(state)
    world.ack(world.message)
    assert world.invalid == [0] and world.message.state is state


@pytest.mark.parametrize("state", [State.INVISIBLE, State.ACKED, State.SETTLED])
def test_only_a_visible_message_is_leased(state: State) -> None:
    assert world_in(state).queue.next_visible() == []


def test_a_rolled_back_lease_counts_no_attempt() -> None:
    world = world_in(State.INVISIBLE)
    world.queue.roll_back_leases(world.opened, None)
    assert world.message.attempt == 0
    assert world.queue.next_visible() == world.opened


def test_an_uncounted_attempt_is_taken_off_at_its_end() -> None:
    world = world_in(State.INVISIBLE)
    world.message.uncounted = True
    world.expire(*world.opened)
    assert [message.attempt for message in world.opened] == [1, 0, 1]


def test_the_committed_offset_is_the_lowest_in_flight() -> None:
    world = world_in(State.INVISIBLE)
    assert world.queue.committed_offset == 0
    world.ack(world.earlier)
    assert world.queue.committed_offset == 1
    world.ack(world.message, world.later)
    assert world.queue.committed_offset == world.queue.cursor == 3


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
