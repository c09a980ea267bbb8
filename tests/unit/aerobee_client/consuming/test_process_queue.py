"""The offset that may be committed, and when pulling pauses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import ConsumerOptions

QUEUE = MessageQueue("t", "a", 0)


@dataclass(eq=False)
class Waiting:
    queue_offset: int
    store_size: int = 10


def messages(*offsets: int, size: int = 10) -> list[ReceivedMessage]:
    return cast(list[ReceivedMessage], [Waiting(offset, size) for offset in offsets])


def new(**limits: Any) -> ProcessQueue:
    return ProcessQueue(QUEUE, ConsumerOptions(**limits))


def test_the_offset_to_commit_is_the_first_waiting_or_the_next() -> None:
    queue = new()
    first, second, third = messages(5, 6, 9)
    queue.put([first, second, third], 12)
    assert queue.remove([second]) == 5
    assert queue.remove([first]) == 9
    assert queue.remove([third]) == 12  # 10 and 11 have other tags


def test_the_start_can_be_committed_before_the_first_pull() -> None:
    assert ProcessQueue(QUEUE, ConsumerOptions(), 7).remove([]) == 7


def test_removing_twice_counts_once() -> None:
    queue = new()
    (only,) = messages(5)
    queue.put([only], 6)
    queue.remove([only])
    assert queue.remove([only]) == 6
    assert queue.size_bytes == 0 and len(queue) == 0


def test_membership_is_by_identity() -> None:
    queue = new()
    mine, other = messages(5)[0], messages(5)[0]
    queue.put([mine], 6)
    assert mine in queue
    assert other not in queue


@given(st.lists(st.integers(0, 50), unique=True, min_size=1), st.randoms(use_true_random=False))
def test_committed_offset_never_passes_a_waiting_message(offsets: list[int], random: Any) -> None:
    queue = new()
    waiting = messages(*sorted(offsets))
    queue.put(waiting, max(offsets) + 1)
    order = list(waiting)
    random.shuffle(order)
    left = set(offsets)
    previous = -1
    for message in order:
        committed = queue.remove([message])
        left.discard(message.queue_offset)
        assert committed == (min(left) if left else max(offsets) + 1)
        assert committed >= previous
        previous = committed


@pytest.mark.parametrize(
    ("limits", "full"),
    [
        ({"pull_threshold_for_queue": 2}, messages(0, 1, 2)),
        ({"pull_threshold_size_for_queue": 25}, messages(0, 1, 2)),
        ({"consume_concurrently_max_span": 10}, messages(0, 11)),
    ],
)
async def test_pulling_pauses_above_a_limit(
    limits: dict[str, int], full: list[ReceivedMessage]
) -> None:
    queue = new(**limits)
    queue.put(full[:-1], 20)
    await queue.wait_for_room()
    queue.put(full[-1:], 20)
    waiting = asyncio.create_task(queue.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.remove(full[:1])
    await waiting


async def test_dropping_releases_those_who_wait_for_room() -> None:
    queue = new(pull_threshold_for_queue=1)
    queue.put(messages(0, 1, 2), 3)
    queue.drop()
    await queue.wait_for_room()
    queue.put(messages(3), 4)
    await queue.wait_for_room()
    assert queue.dropped
