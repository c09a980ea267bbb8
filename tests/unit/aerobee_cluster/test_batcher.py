"""Batches: when they leave, in which order, and the outcome of each item."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from aerobee_cluster.batcher import MAX_BYTES, MAX_ITEMS, Batcher, Batchers


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


async def next_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_lone_item_leaves_at_once() -> None:
    peer = Peer()
    peer.gate.set()
    assert await Batcher(peer).submit("a", 1) == "A"
    assert peer.batches == [["a"]]


async def test_queued_items_leave_together_in_order() -> None:
    peer = Peer()
    batcher = Batcher(peer)
    futures = [batcher.submit("a", 1)]
    await next_turns()
    futures += [batcher.submit(name, 1) for name in "bcd"]
    await next_turns()
    assert peer.batches == [["a"]]
    peer.gate.set()
    assert await asyncio.gather(*futures) == ["A", "B", "C", "D"]
    assert peer.batches == [["a"], ["b", "c", "d"]]


async def test_batch_is_bounded_in_number_and_size() -> None:
    peer = Peer()
    peer.gate.set()
    batcher = Batcher(peer)
    futures = [batcher.submit(str(n), 1) for n in range(MAX_ITEMS + 1)]
    futures += [batcher.submit("large", MAX_BYTES), batcher.submit("larger", MAX_BYTES + 1)]
    await asyncio.gather(*futures)
    assert list(map(len, peer.batches)) == [MAX_ITEMS, 1, 1, 1]


async def test_a_batcher_has_bounds_of_its_own() -> None:
    peer = Peer()
    peer.gate.set()
    batcher = Batcher(peer, max_items=3, max_bytes=10)
    sizes = {"a": 1, "b": 1, "c": 1, "d": 1, "e": 8, "f": 2}
    futures = [batcher.submit(name, size) for name, size in sizes.items()]
    several = batcher.submit_all([*"ghij"])
    await asyncio.gather(*futures, several)
    assert peer.batches == [[*"abc"], [*"de"], ["f"], [*"ghij"]]


async def test_failure_of_one_item() -> None:
    peer = Peer()
    peer.gate.set()
    batcher = Batcher(peer)
    futures = [batcher.submit(name, 1) for name in ("a", "bad", "c")]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert outcomes[0::2] == ["A", "C"]
    assert isinstance(outcomes[1], ValueError)


async def test_failed_batch_fails_its_items_only() -> None:
    peer = Peer()
    batcher = Batcher(peer)
    failed = [batcher.submit("a", 1), batcher.submit("poison", 1)]
    await next_turns()
    later = batcher.submit("b", 1)
    peer.gate.set()
    outcomes = await asyncio.gather(*failed, return_exceptions=True)
    assert all(isinstance(outcome, ConnectionError) for outcome in outcomes)
    assert await later == "B"


async def test_cancelled_item_leaves_others_alone() -> None:
    peer = Peer()
    batcher = Batcher(peer)
    gone, stays = batcher.submit("a", 1), batcher.submit("b", 1)
    await next_turns()
    gone.cancel()
    peer.gate.set()
    assert await stays == "B"


async def test_close_cancels_batch_and_queue() -> None:
    batcher = Batcher(Peer())
    under_way = batcher.submit("a", 1)
    await next_turns()
    waits = batcher.submit("b", 1)
    await batcher.close()
    for future in (under_way, waits):
        with pytest.raises(asyncio.CancelledError):
            await future


async def test_submit_all_shares_a_batch() -> None:
    peer = Peer()
    peer.gate.set()
    batcher = Batcher(peer)
    lone = batcher.submit("a", 1)
    several = batcher.submit_all(["b", "bad", "c"], 3)
    await asyncio.sleep(0)
    assert await lone == "A"
    outcomes = await several
    assert list(map(str, outcomes)) == ["B", "bad", "C"]
    assert isinstance(outcomes[1], ValueError)
    assert [item for batch in peer.batches for item in batch] == ["a", "b", "bad", "c"]


async def test_submit_all_is_not_split() -> None:
    peer = Peer()
    peer.gate.set()
    batcher = Batcher(peer)
    many = [str(n) for n in range(MAX_ITEMS - 1)]
    outcomes = await asyncio.gather(
        batcher.submit_all(many, len(many)), batcher.submit_all(["x", "y"], 2)
    )
    assert list(map(list, outcomes)) == [many, ["X", "Y"]]
    assert list(map(len, peer.batches)) == [MAX_ITEMS - 1, 2]


async def test_cancelled_queued_items_do_not_leave() -> None:
    peer = Peer()
    batcher = Batcher(peer)
    first = batcher.submit("under way", 1)
    await next_turns()
    cancelled = [batcher.submit(f"old {n}", 1) for n in range(1_000)]
    both = batcher.submit_all(["old ack", "another"], 2)
    last = batcher.submit("new", 1)
    await next_turns()
    both.cancel()
    for future in cancelled:
        future.cancel()
    peer.gate.set()
    assert [await first, await last] == ["UNDER WAY", "NEW"]
    assert peer.batches == [["under way"], ["new"]]
    # With an empty queue it stops, and starts again with the next item.
    peer.gate.clear()
    under_way = batcher.submit("x", 1)
    await next_turns()
    batcher.submit("left", 1).cancel()
    peer.gate.set()
    assert await under_way == "X"
    await next_turns()
    assert await batcher.submit("y", 1) == "Y"
    assert peer.batches[2:] == [["x"], ["y"]]


async def test_drain_waits_for_the_batch_under_way_and_the_queue() -> None:
    peer = Peer()
    batcher = Batcher(peer)
    await batcher.drain()
    futures = [batcher.submit("a", 1)]
    await next_turns()
    futures.append(batcher.submit("b", 1))
    draining = asyncio.create_task(batcher.drain())
    await next_turns()
    assert not draining.done()
    peer.gate.set()
    await draining
    assert [future.result() for future in futures] == ["A", "B"]


async def test_batcher_that_is_closed_before_its_first_batch_is_drained() -> None:
    batcher = Batcher(Peer())
    item = batcher.submit("a", 1)
    await batcher.close()
    await batcher.drain()
    assert item.cancelled()


async def test_too_few_outcomes_fail_the_batch() -> None:
    async def answer_one(items: Sequence[str]) -> Sequence[str | Exception]:
        return items[:1]

    batcher = Batcher(answer_one)
    futures = [batcher.submit(name, 1) for name in "ab"]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(outcome, ValueError) for outcome in outcomes)


async def test_each_broker_has_its_own_batches() -> None:
    asked: list[tuple[str, list[str]]] = []

    async def answer(broker_name: str, items: Sequence[str]) -> Sequence[str | Exception]:
        asked.append((broker_name, [*items]))
        return items

    batchers: Batchers[str, str] = Batchers(answer, max_items=2)
    sent = ("a", "1"), ("a", "2"), ("b", "3"), ("b", "4"), ("a", "5")
    futures = [batchers[name].submit(item, 1) for name, item in sent]
    assert await asyncio.gather(*futures) == [*"12345"]
    assert sorted(asked) == [("a", ["1", "2"]), ("a", ["5"]), ("b", ["3", "4"])]
