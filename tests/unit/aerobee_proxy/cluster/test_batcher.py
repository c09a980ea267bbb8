"""Sends that leave together: when, in which order, and who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from aerobee_proxy.cluster.batcher import MAX_BYTES, MAX_ITEMS, Coalescer


class Peer:
    """Takes batches; answers each item in capitals once `gate` is open."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()

    async def __call__(self, items: Sequence[str]) -> Sequence[str | Exception]:
        self.batches.append(list(items))
        await self.gate.wait()
        if "poison" in items:
            raise ConnectionError("gone")
        return [ValueError(item) if item == "bad" else item.upper() for item in items]


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lone_item_leaves_at_once() -> None:
    peer = Peer()
    peer.gate.set()
    assert await Coalescer(peer).put("a", 1) == "A"
    assert peer.batches == [["a"]]


async def test_what_comes_while_a_batch_is_under_way_leaves_together_in_order() -> None:
    peer = Peer()
    line = Coalescer(peer)
    futures = [line.place("a", 1)]
    await settled()
    futures += [line.place(name, 1) for name in "bcd"]
    await settled()
    assert peer.batches == [["a"]]
    peer.gate.set()
    assert await asyncio.gather(*futures) == ["A", "B", "C", "D"]
    assert peer.batches == [["a"], ["b", "c", "d"]]


async def test_a_batch_is_bounded_by_number_and_by_size() -> None:
    peer = Peer()
    peer.gate.set()
    line = Coalescer(peer)
    futures = [line.place(str(n), 1) for n in range(MAX_ITEMS + 1)]
    futures += [line.place("large", MAX_BYTES), line.place("larger", MAX_BYTES + 1)]
    await asyncio.gather(*futures)
    assert list(map(len, peer.batches)) == [MAX_ITEMS, 1, 1, 1]


async def test_only_the_item_that_failed_hears_of_it() -> None:
    peer = Peer()
    peer.gate.set()
    line = Coalescer(peer)
    futures = [line.place(name, 1) for name in ("a", "bad", "c")]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert outcomes[0::2] == ["A", "C"]
    assert isinstance(outcomes[1], ValueError)


async def test_when_a_batch_fails_everyone_in_it_hears_and_the_next_goes_on() -> None:
    peer = Peer()
    line = Coalescer(peer)
    failed = [line.place("a", 1), line.place("poison", 1)]
    await settled()
    later = line.place("b", 1)
    peer.gate.set()
    outcomes = await asyncio.gather(*failed, return_exceptions=True)
    assert all(isinstance(outcome, ConnectionError) for outcome in outcomes)
    assert await later == "B"


async def test_a_caller_that_leaves_takes_nothing_from_the_others() -> None:
    peer = Peer()
    line = Coalescer(peer)
    gone, stays = line.place("a", 1), line.place("b", 1)
    await settled()
    gone.cancel()
    peer.gate.set()
    assert await stays == "B"


async def test_closing_gives_up_what_is_under_way_and_what_waits() -> None:
    line = Coalescer(Peer())
    under_way = line.place("a", 1)
    await settled()
    waits = line.place("b", 1)
    await line.close()
    for future in (under_way, waits):
        with pytest.raises(asyncio.CancelledError):
            await future


async def test_items_of_one_caller_leave_together_beside_others() -> None:
    peer = Peer()
    peer.gate.set()
    line = Coalescer(peer)
    lone = line.place("a", 1)
    several = asyncio.create_task(line.put_all(["b", "bad", "c"], 3))
    await asyncio.sleep(0)
    assert await lone == "A"
    outcomes = await several
    assert [str(one) for one in outcomes] == ["B", "bad", "C"]
    assert isinstance(outcomes[1], ValueError)
    assert [item for batch in peer.batches for item in batch] == ["a", "b", "bad", "c"]


async def test_items_of_one_caller_are_not_torn_apart() -> None:
    peer = Peer()
    peer.gate.set()
    line = Coalescer(peer)
    many = [str(n) for n in range(MAX_ITEMS - 1)]
    outcomes = await asyncio.gather(line.put_all(many, len(many)), line.put_all(["x", "y"], 2))
    assert list(map(list, outcomes)) == [many, ["X", "Y"]]
    assert list(map(len, peer.batches)) == [MAX_ITEMS - 1, 2]


async def test_what_is_given_up_in_line_does_not_leave_and_is_not_kept() -> None:
    peer = Peer()
    line = Coalescer(peer)
    first = line.place("under way", 1)
    await settled()
    given_up = [line.place(f"old {n}", 1) for n in range(1_000)]
    all_of_one = asyncio.create_task(line.put_all(["old ack", "another"], 2))
    last = line.place("new", 1)
    await settled()
    all_of_one.cancel()
    for one in given_up:
        one.cancel()
    peer.gate.set()
    assert [await first, await last] == ["UNDER WAY", "NEW"]
    assert peer.batches == [["under way"], ["new"]]
    # With nobody left in line it rests, and serves who comes next.
    peer.gate.clear()
    under_way = line.place("x", 1)
    await settled()
    line.place("left", 1).cancel()
    peer.gate.set()
    assert await under_way == "X"
    await settled()
    assert await line.put("y", 1) == "Y"
    assert peer.batches[2:] == [["x"], ["y"]]
