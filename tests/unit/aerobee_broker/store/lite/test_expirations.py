"""Lite topics that their TTL removes: gone at once and for good, whatever is read again."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from aerobee_broker.store.lite.expirations import Expirations, ParentExpirations
from aerobee_broker.store.lite.lite_queue import LiteQueue
from support.disk.lite_lines import FOLDER, Units, opened
from support.disk.simulated_disk import SimulatedDisk


class World:
    """A queue, and for each lite topic the queue offsets that it must have."""

    def __init__(self) -> None:
        self.units, self.disk, self.expirations = Units(), SimulatedDisk(), Expirations()
        self.queue = opened(self.units, self.disk, self.expirations)
        self.expected: dict[int, list[int]] = defaultdict(list)

    def add(self, *codes: int) -> None:
        first = len(self.units.codes)
        self.queue.extend(first, self.units.add(list(codes)))
        for at, code in enumerate(codes, first):
            self.expected[code].append(at)

    def expire(self, floor: int, *, free: bool = True) -> dict[int, int]:
        found, low = dict(self.queue.expire(floor)), self.units.low
        gone = {code: its[-1] for code, its in self.expected.items() if its and its[-1] < floor}
        assert found.items() >= {code: at for code, at in gone.items() if at >= low}.items()
        assert found.items() <= gone.items()
        for code in gone:
            self.expected[code] = []
            if free:
                self.queue.forget_expired(code)
        return found

    def start(self) -> None:
        """With what `liteOffsets` would have."""
        again = Expirations()
        again.load(*self.expirations.to_bytes())
        self.expirations = again
        self.queue = opened(self.units, self.disk, again)

    def check(self) -> None:
        for code, expected in self.expected.items():
            stored = [at for at in expected if at >= self.units.low]
            assert self.queue.offsets(code, 0, len(self.units.codes) + 1) == stored
            assert self.queue.count_from(code, 0) == len(stored)
            last = self.queue.last(code)
            found = last.queue_offset if last and last.queue_offset >= self.units.low else -1
            assert found == (stored[-1] if stored else -1)


def test_an_expired_lite_topic_has_no_messages_and_begins_anew() -> None:
    world = World()
    world.add(1, 1, 2)
    assert world.expire(2) == {1: 1}
    assert world.queue.last(1) is None
    assert world.queue.first_from(1, 0) is None
    assert world.queue.count_from(1, 0) == 0
    world.add(1)
    assert world.queue.last(1) == (3, 0)
    assert world.queue.offsets(1, 0, 10) == [3]


def test_messages_of_what_has_expired_can_be_counted() -> None:
    """Also once it is forgotten, has begun anew, or was read again."""
    world = World()
    world.add(1, 2, 1, 1, 2, 1)
    assert world.expire(6) == {1: 5, 2: 4}
    for _ in range(2):
        assert [world.queue.count_back(5, offset) for offset in (0, 2, 3, 5, 6)] == [4, 3, 2, 1, 0]
        world.add(1)
        world.queue.rebuild()


def test_what_nothing_has_expired_of_leaves_no_trace() -> None:
    world = World()
    assert world.expire(5) == {}
    world.add(1, 2)
    assert world.expire(0) == {}
    assert len(world.expirations) == 0


def test_expirations_at_one_end_are_one() -> None:
    expirations = Expirations()
    assert expirations.add(10, 4)
    assert expirations.add(10, 7)
    assert not expirations.add(10, 7)
    assert not expirations.add(9, 8)  # of a record that is read a second time
    assert expirations.add(20, 12)
    assert list(expirations) == [(10, 7), (20, 12)]
    assert [expirations.at(at)[0] for at in (0, 9, 10, 19, 20, 99)] == [0, 0, 7, 7, 12, 12]


def test_expirations_end_with_the_messages_that_they_concern() -> None:
    world = World()
    world.add(1, 2, 2)
    world.expire(1)
    world.add(3, 4)
    world.expire(3)
    assert list(world.expirations) == [(3, 1), (5, 3)]
    world.units.low = 2
    world.queue.trim()
    assert list(world.expirations) == [(5, 3)]
    world.check()


def test_expirations_of_a_queue_before_are_not_taken() -> None:
    """A parent was deleted and made again: its queue offsets begin at 0 again."""
    world = World()
    world.add(1, 2, 3, 4)
    world.expire(3)
    world.units = Units()
    world.units.add([1, 1])
    world.start()
    assert world.queue.offsets(1, 0, 9) == [0, 1]
    assert len(world.expirations) == 0


def test_those_of_a_parent_go_with_it() -> None:
    parents = ParentExpirations()
    parents.of("a", 0).add(5, 2)
    parents.of("a", 1)
    parents.of("b", 0).add(7, 3)
    assert [(parent, queue_id) for parent, queue_id, _ in parents] == [("a", 0), ("b", 0)]
    assert parents.remove_parent("a")
    assert not parents.remove_parent("a")
    assert (len(parents), parents.parents()) == (1, {"b"})


@pytest.mark.parametrize("seed", range(40))
def test_the_same_lite_topics_whatever_is_read_again(seed: int) -> None:
    """After starts with and without heads and links, damaged or whole, and rebuilds."""
    rng, world = random.Random(seed), World()
    codes = rng.choice((3, 30, 300))
    for _ in range(rng.randrange(5, 60)):
        world.add(*(rng.randrange(1, codes + 1) for _ in range(rng.randrange(40))))
        match rng.randrange(7):
            case 0 | 1 if world.units.codes:
                floor = rng.randrange(len(world.units.codes) + 1)
                world.expire(max(0, floor), free=rng.random() < 0.7)
            case 2 if (capture := world.queue.capture()) is not None:
                capture.write()
            case 3:
                world.start()
            case 4:
                world.disk.remove_tree(FOLDER)
                world.start()
            case 5:
                world.queue.rebuild()
            case 6:
                world.units.low = rng.randrange(world.units.low, len(world.units.codes) + 1)
                world.queue.trim()
        world.check()
    assert_memory(world.queue)


def assert_memory(queue: LiteQueue) -> None:
    """Nothing is left of what is gone."""
    queue.rebuild()
    assert len(queue) == sum(queue.last(code) is not None for code in queue.codes())
