"""Store times that go back: what the log remembers of it, and what a search by time returns."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from aerobee_broker.store.derived.time_steps import MAX_STEPS, Step, TimeSteps
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH, SMALL, open_store, send

DAY_MS = 86_400_000
MINUTE_MS = 60_000


def test_steps_beyond_the_room_of_a_checkpoint_become_a_part_without_order() -> None:
    steps = TimeSteps()
    for number in range(1, MAX_STEPS + 3):
        steps.add(number * 100, number)
    parts = list(steps.parts())
    assert not parts[0].is_ordered
    assert all(part.is_ordered for part in parts[1:])
    assert [part.begin for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert len(steps.steps) <= MAX_STEPS
    assert parts[0].highest_ms == parts[0].end // 100  # type: ignore[operator]
    steps.drop_below(parts[0].end or 0)
    assert all(part.is_ordered for part in steps.parts())


def test_steps_of_a_log_that_is_rolled_back_or_deleted_are_dropped() -> None:
    steps = TimeSteps((Step(100, 5), Step(200, 4), Step(300, 9)))
    assert steps.below(300) == ((Step(100, 5), Step(200, 4)), Step(0, 0))
    steps.drop_from(300)
    assert steps.steps == [Step(100, 5), Step(200, 4)]
    assert steps.highest_ms(0, 150) == 5
    assert steps.highest_ms(100, 200) == 4
    steps.drop_below(100)
    assert steps.steps == [Step(200, 4)]


def filled(
    rng: random.Random, count: int, back: float
) -> tuple[MessageStore, SimulatedDisk, ManualClock, list[int]]:
    """A store, and the store times of the messages of its queue."""
    disk, clock = SimulatedDisk(), ManualClock()
    store = open_store(disk, SMALL, clock)
    times: list[int] = []
    for number in range(count):
        topic = "a" if rng.random() < 0.7 else "other"
        send(store, [NewMessage(topic, 0, b"%d" % number, b"")])
        if topic == "a":
            times.append(store.store_timestamp("a", 0, len(times)))
        if rng.random() < back:
            clock.jump(-rng.choice((1, MINUTE_MS, 3 * DAY_MS)))
        else:
            clock.advance(rng.choice((1, 1_000, MINUTE_MS, DAY_MS)))
        if rng.random() < 0.1:
            clock.advance(4_000)
            store.maintain(clock.now_ms())
            while store.has_file_work and store.maintain_files():
                pass
    return store, disk, clock, times


def check(store: MessageStore, times: list[int], *, is_exact: bool) -> None:
    """Hold each search to what a look at every message finds."""
    assert times
    for time in sorted({t + d for t in times for d in (-1, 0, 1)}):
        first = next((at for at, stored in enumerate(times) if stored >= time), len(times))
        last = max((at for at, stored in enumerate(times) if stored <= time), default=0)
        found = store.search_offset("a", 0, time)
        assert found <= first, "a message that is as young as the time is skipped"
        if is_exact:
            assert found == first
            assert store.search_offset("a", 0, time, upper=True) == last


@pytest.mark.parametrize("seed", range(6))
def test_a_search_by_time_finds_the_first_message_though_the_clock_was_set_back(seed: int) -> None:
    """Also after a stop, a kill, a lost checkpoint and a lost index."""
    rng = random.Random(seed)
    store, disk, clock, times = filled(rng, 120, back=0.05)
    steps = sum(after < before for before, after in pairwise(times))
    assert 0 < steps < MAX_STEPS
    check(store, times, is_exact=True)
    disk = disk.after_kill()
    store = open_store(disk, SMALL, clock)
    check(store, times, is_exact=True)
    store.close()
    for lost in ("", "checkpoint", "index"):
        if lost == "index":
            disk.remove_tree(PATH / lost)
        elif lost:
            disk.remove(PATH / lost)
        store = open_store(disk, SMALL, clock)
        check(store, times, is_exact=True)
        store.close()


def test_a_clock_that_is_often_set_back_skips_no_young_message() -> None:
    store, disk, clock, times = filled(random.Random(1), 200, back=0.4)
    assert sum(after < before for before, after in pairwise(times)) > MAX_STEPS
    check(store, times, is_exact=False)
    store.close()
    check(open_store(disk, SMALL, clock), times, is_exact=False)


@pytest.mark.parametrize("jump_ms", [-3 * DAY_MS, 3 * DAY_MS])
def test_a_key_is_found_by_time_though_the_clock_was_wrong(jump_ms: int) -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    store = open_store(disk, SMALL, clock)
    for number, jump in enumerate((jump_ms, -jump_ms, jump_ms, 0)):
        clock.jump(jump)
        send(store, [NewMessage("a", 0, b"%d" % number, props.encode({"KEYS": "k"}))])
    for number in range(4):
        (record,) = [each for each in store.query("a", "k") if each.queue_offset == number]
        at_ms = record.store_timestamp_ms
        found = store.query("a", "k", begin_ms=at_ms - 1_000, end_ms=at_ms + 1_000)
        assert number in {each.queue_offset for each in found}


def test_an_append_that_is_rolled_back_leaves_no_step() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    store = open_store(disk, SMALL, clock)
    send(store, [NewMessage("a", 0, b"1", b"")])
    clock.jump(-DAY_MS)
    store.append([NewMessage("a", 0, b"lost", b"")])
    store.flush.roll_back()
    clock.advance(DAY_MS // 2)
    send(store, [NewMessage("a", 0, b"2", b"")])
    check(store, [store.store_timestamp("a", 0, at) for at in range(2)], is_exact=True)
