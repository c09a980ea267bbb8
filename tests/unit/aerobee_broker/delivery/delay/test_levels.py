"""Which queue a delayed message waits in, and the deliver time in its consume-queue unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from aerobee_broker.delivery.delay.levels import (
    FIRST_OWN_QUEUE,
    MAX_OWN_QUEUES,
    DelayQueues,
    deliver_time,
    take_destination,
)
from aerobee_broker.errors import DiskFull
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from support.broker.harness import BrokerHarness
from support.broker.pop_restarts import failing_disk

LEVELS = (1_000, 5_000, 10_000)


def delay_queues(
    levels_ms: Sequence[int] = LEVELS, is_empty: Callable[[int], bool] = lambda _: False
) -> DelayQueues:
    return DelayQueues(levels_ms, is_empty, lambda: 0)


def by_delay(queues: DelayQueues, delay_ms: int) -> tuple[int, dict[str, str]]:
    message = queues.by_delay(NewMessage("%RETRY%g", 0, b"x"), {}, delay_ms)
    return message.queue_id, props.decode(message.properties)


def test_each_delay_has_a_queue_of_its_own() -> None:
    queues = delay_queues()
    assert [by_delay(queues, delay)[0] for delay in (300, 700, 300, 5_000)] == [18, 19, 18, 1]
    assert (queues.delay_of(18), queues.delay_of(19), queues.delay_of(1)) == (300, 700, 5_000)
    assert (queues.name_of(18), queues.name_of(1)) == ("0.3 s", "level 2 (5 s)")


@pytest.mark.parametrize(
    ("properties", "due"),
    [
        ({"DELAY": "2"}, 6_000),
        ({"RETRY_DELAY_MS": "1500"}, 2_500),
        ({"DELAY": "9"}, 2_000),  # a level that messageDelayLevel no longer has
        ({}, 2_000),
        ({"DELAY": "x"}, 2_000),
    ],
)
def test_the_deliver_time_follows_from_the_record(properties: dict[str, str], due: int) -> None:
    assert deliver_time(LEVELS, props.encode(properties), 1_000) == due


def test_a_restored_queue_keeps_its_delay() -> None:
    queues = delay_queues()
    queues.restore(20, 300)
    assert by_delay(queues, 300)[0] == 20
    assert by_delay(queues, 400)[0] == 18


def test_an_empty_queue_is_given_another_delay_when_all_are_used() -> None:
    empty: set[int] = set()
    queues = delay_queues(is_empty=empty.__contains__)
    for number in range(MAX_OWN_QUEUES):
        by_delay(queues, 100 + number)
    queues.arrived(FIRST_OWN_QUEUE + 5)
    empty.add(FIRST_OWN_QUEUE + 5)
    assert by_delay(queues, 50)[0] == FIRST_OWN_QUEUE + 5
    assert by_delay(queues, 50)[0] == FIRST_OWN_QUEUE + 5
    assert queues.delay_of(FIRST_OWN_QUEUE + 5) == 50


def test_two_delays_of_one_append_take_different_queues() -> None:
    """In one queue the shorter delay would hold for both: one message would be early."""
    queues = delay_queues(is_empty=lambda _: True)
    for number in range(MAX_OWN_QUEUES):
        by_delay(queues, 100 + number)
        queues.arrived(FIRST_OWN_QUEUE + number)
    used = by_delay(queues, 100)[0], by_delay(queues, 3_600_000)[0], by_delay(queues, 50)[0]
    assert used == (FIRST_OWN_QUEUE, FIRST_OWN_QUEUE + 1, FIRST_OWN_QUEUE + 2)
    assert [queues.delay_of(queue_id) for queue_id in used] == [100, 3_600_000, 50]


async def test_a_queue_is_given_another_delay_after_its_append_was_rolled_back(
    harness: BrokerHarness,
) -> None:
    store, queues = harness.store, harness.broker.sending.send_back.delays.queues
    kept = [NewMessage("%RETRY%g", 0, b"x")]
    for number in range(MAX_OWN_QUEUES):
        message = queues.by_delay(NewMessage("%RETRY%g", 0, b"x"), {}, 100_000 + number)
        store.append([message], reserve=True)
        if number == 5:
            lost = message.queue_id
            store.flush.roll_back()
        await harness.broker.log.put_accepted(kept)
    assert queues.by_delay(kept[0], {}, 50_000).queue_id == lost
    with pytest.raises(DiskFull), failing_disk(harness, DiskFull("injected")):
        await harness.broker.log.put_accepted([queues.by_delay(kept[0], {}, 50_000)])
    assert queues.by_delay(kept[0], {}, 55_000).queue_id == lost


def test_without_a_free_queue_a_message_waits_longer() -> None:
    queues = delay_queues()
    for number in range(MAX_OWN_QUEUES):
        by_delay(queues, 100 + 2 * number)
    queue_id, properties = by_delay(queues, 101)
    assert (queues.delay_of(queue_id), properties["RETRY_DELAY_MS"]) == (102, "102")


def test_without_a_free_queue_a_delay_level_takes_it() -> None:
    queues = delay_queues([1_000, 60_000, 30_000])
    for number in range(MAX_OWN_QUEUES):
        by_delay(queues, 100 + number)
    queue_id, properties = by_delay(queues, 5_000)
    assert (queue_id, properties["RETRY_DELAY_MS"]) == (2, "30000")


def test_a_destination_is_read_and_its_properties_removed() -> None:
    queues = delay_queues()
    waiting = queues.by_level(NewMessage("t", 7, b"x"), {"TAGS": "a"}, 2)
    properties = props.decode(waiting.properties)
    assert take_destination(properties) == ("t", 7)
    assert properties == {"TAGS": "a", "DELAY": "2"}, "the level stays"
    retry = props.decode(queues.by_level(NewMessage("%RETRY%g", 0, b"x"), {}, 2).properties)
    assert take_destination(retry) == ("%RETRY%g", 0)
    assert retry == {}


@pytest.mark.parametrize(
    "properties", [{}, {"REAL_TOPIC": "t"}, {"REAL_TOPIC": "t", "REAL_QID": "x"}]
)
def test_a_message_may_name_no_destination(properties: dict[str, str]) -> None:
    assert take_destination(properties) is None
