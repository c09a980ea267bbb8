"""The events of a message in a long lease journal, over records in memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee_broker.delivery.pop.lease_journal_format import (
    JournalRecord,
    LeasedQueue,
    LeasedRun,
    LeaseRecord,
    ResetRecord,
    SettledQueue,
    SettledRun,
    SettleRecord,
    encode,
)
from aerobee_broker.delivery.tracking import lease_trail
from aerobee_broker.delivery.tracking.lease_trail import End, Trail, read_trail
from aerobee_broker.delivery.tracking.state import Place
from support import records

JOURNAL, TOPIC = "journal", "orders"
POPPED = 8


class Store:
    """A journal in memory. The record at an offset was stored at that millisecond."""

    def __init__(self, content: Sequence[JournalRecord]) -> None:
        self.read_records = 0
        self._records = [
            records.encode(
                topic=JOURNAL,
                queue_offset=offset,
                physical_offset=offset * 1_000,
                body=encode(each, JOURNAL, 0).body,
                store_timestamp_ms=offset,
            )
            for offset, each in enumerate(content)
        ]

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self._records)

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        return queue_offset

    def search_offset(self, topic: str, queue_id: int, time_ms: int) -> int:
        return min(time_ms, len(self._records))

    def read(
        self, topic: str, queue_id: int, offset: int, *, max_messages: int, max_bytes: int
    ) -> Any:
        part = self._records[offset : offset + max_messages]
        self.read_records += len(part)
        return SimpleNamespace(records=b"".join(part), next_begin_offset=offset + len(part))


def trail_of(store: Store, offset: int, group: str) -> Trail:
    place = Place(TOPIC, 0, offset)
    reading, steps = read_trail(cast(Any, store), JOURNAL, place, group, 0)
    for _ in steps:
        pass
    return reading.trail


def leased(group: str, cursor: int, length: int = POPPED, queue_id: int = 0) -> LeaseRecord:
    queue = LeasedQueue(queue_id, cursor, cursor + length, [LeasedRun(cursor, 1, length)], ())
    return LeaseRecord(group, TOPIC, cursor, 5, 60_000, False, "", [queue], f"{group}-{cursor}")


def settled(group: str, first: int, length: int = POPPED, queue_id: int = 0) -> SettleRecord:
    return SettleRecord([SettledQueue(group, TOPIC, queue_id, [SettledRun(first, length)], ())])


def consumed(group: str, begin: int, end: int) -> list[JournalRecord]:
    return [
        record
        for cursor in range(begin, end, POPPED)
        for record in (leased(group, cursor), settled(group, cursor))
    ]


def test_leases_far_behind_a_message_are_found_without_reading_what_is_between() -> None:
    others = consumed("prompt", 0, 40_000)
    store = Store([*others, *consumed("late", 0, 40_000)])
    trail = trail_of(store, 20_004, "late")
    assert (trail.end, trail.client_id) == (End.SETTLED, "late-20000")
    assert trail.at_ms == len(others) + 20_000 // POPPED * 2 + 1
    assert store.read_records < 6_000


def test_a_group_that_paused_is_found_by_further_probes() -> None:
    others = consumed("prompt", 0, 40_000)
    store = Store([*others, *consumed("late", 0, 4_000), *consumed("prompt", 40_000, 120_000)])
    assert trail_of(store, 3_004, "late").client_id == "late-3000"
    assert store.read_records < 15_000


def test_a_group_that_keeps_up_costs_one_step() -> None:
    store = Store([*consumed("prompt", 0, 8_000), *consumed("late", 0, 40_000)])
    assert trail_of(store, 100, "prompt").end is End.SETTLED
    assert store.read_records <= lease_trail.STEP_RECORDS


def test_a_reset_over_a_message_is_found_between_two_pops() -> None:
    moved = ResetRecord("late", TOPIC, 0, 9_000, "ops@host")
    store = Store(
        [*consumed("late", 0, 8_000), moved, *(leased("late", 9_000 + n, 1) for n in range(2_000))]
    )
    trail = trail_of(store, 8_500, "late")
    assert (trail.end, trail.reset_by, trail.at_ms) == (End.RESET, "ops@host", 2_000)
    assert store.read_records < 6_000


def test_after_a_reset_to_an_earlier_message_one_of_its_consumptions_is_found() -> None:
    moved = ResetRecord("late", TOPIC, 0, 100, "ops@host")
    store = Store([*consumed("late", 0, 4_000), moved, *consumed("late", 100, 8_000)])
    for offset in (0, 100, 2_000, 3_999, 5_000):
        assert trail_of(store, offset, "late").end is End.SETTLED


def test_what_follows_the_end_of_a_message_does_not_change_it() -> None:
    again = leased("late", 0)._replace(client_id="another client")
    store = Store([leased("late", 0), settled("late", 0), ResetRecord("late", TOPIC, 0, 0), again])
    assert trail_of(store, 3, "late").client_id == "late-0"
    skips = [ResetRecord("late", TOPIC, 0, 90, name) for name in ("first@host", "second@host")]
    assert trail_of(Store([leased("late", 0), *skips]), 50, "late").reset_by == "first@host"


def test_a_group_that_began_after_a_message_is_told_apart() -> None:
    store = Store([*consumed("prompt", 0, 8_000), *consumed("late", 500, 8_000)])
    assert trail_of(store, 100, "late").end is End.BEFORE_FIRST_POP


def history(rng: random.Random) -> list[JournalRecord]:
    """Three groups in two queues: pops that leave messages out, late settlements, and skips."""
    cursors: dict[tuple[str, int], int] = {}
    open_leases: list[tuple[str, int, int, int]] = []
    content: list[JournalRecord] = []
    for _ in range(2_000):
        if open_leases and rng.random() < 0.5:
            group, queue_id, first, length = open_leases.pop(rng.randrange(len(open_leases)))
            content.append(settled(group, first, length, queue_id))
            continue
        group, queue_id = rng.choice("abb"), rng.randrange(2)
        cursor = cursors.get((group, queue_id), rng.randrange(5))
        if rng.random() < 0.02:
            cursor += 3
            content.append(ResetRecord(group, TOPIC, queue_id, cursor, "ops"))
        left_out = rng.randrange(2)
        first, length = cursor + left_out, rng.randint(1, 4)
        run = LeasedRun(first, 1, length)
        queue = LeasedQueue(queue_id, cursor, first + length, [run], ())
        content.append(
            LeaseRecord(group, TOPIC, len(content), 5, 60_000, False, "", [queue], f"c{first}")
        )
        open_leases.append((group, queue_id, first, length))
        cursors[group, queue_id] = first + length
    return content


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_search_finds_what_reading_all_records_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    store = Store(history(rng))
    monkeypatch.setattr(lease_trail, "STEP_RECORDS", 64)
    monkeypatch.setattr(lease_trail, "NEAR_RECORDS", 64)
    wanted = [(rng.choice("ab"), rng.randrange(1_500)) for _ in range(30)]
    found = [trail_of(store, offset, group) for group, offset in wanted]

    def from_the_start(_: object, low: int, high: int) -> Any:
        yield True
        return low

    monkeypatch.setattr(lease_trail._Journal, "_reached", from_the_start)
    assert found == [trail_of(store, offset, group) for group, offset in wanted]
    assert len({trail.end for trail in found}) > 2
