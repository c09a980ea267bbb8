"""Sends of other threads: how they get room, and how they come to the loop of their producer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from aerobee_client.message import Message
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.inbox import Arrival, Inbox
from aerobee_wire.status import Code, MqError
from support.clock.polling import until_sync
from support.codes import raises_code


def arrival(timeout_s: float = 5.0) -> Arrival:
    return Arrival(Message("t", b"x"), None, None, timeout_s, Future())


class Inboxes:
    """An inbox whose wake-ups are counted, and run when the test says so."""

    def __init__(self, budget: Budget) -> None:
        self.wake_ups = 0
        self.accepted: list[Arrival] = []
        self.inbox = Inbox(budget, self.accepted.append)

    def put(self, send: Arrival, *, block: bool) -> None:
        self.inbox.put(send, self._wake, block=block)

    def _wake(self, function: Any) -> None:
        self.wake_ups += 1


def test_many_sends_cost_one_wake_up() -> None:
    given = Inboxes(Budget(1_000, 1_000))
    sends = [arrival() for _ in range(100)]
    for send in sends:
        given.put(send, block=True)
    assert (given.wake_ups, given.accepted) == (1, [])
    given.inbox.empty()
    assert given.accepted == sends
    given.put(arrival(), block=True)
    assert given.wake_ups == 2


def test_a_send_without_a_loop_is_refused_and_the_next_one_wakes_it() -> None:
    """As before the start, or after the close, of a plain producer that starts again."""
    budget = Budget(1, 1_000)
    given = Inboxes(budget)
    refused = arrival()

    def no_loop(function: Any) -> None:
        raise MqError(Code.ILLEGAL_OPERATION, "not running")

    with raises_code(Code.ILLEGAL_OPERATION):
        given.inbox.put(refused, no_loop, block=False)
    assert refused.future.done()
    assert budget.taken() == (0, 0)
    sent = arrival()
    given.put(sent, block=False)
    assert given.wake_ups == 1
    given.inbox.empty()
    assert given.accepted == [sent]


@pytest.mark.parametrize(("block", "timeout_s"), [(False, 60.0), (True, 0.01)])
def test_without_room_a_send_fails(block: bool, timeout_s: float) -> None:
    given = Inboxes(Budget(1, 1_000))
    given.put(arrival(), block=True)
    late = arrival(timeout_s)
    given.put(late, block=block)
    with raises_code(Code.FLOW_CONTROL):
        late.future.result()
    given.inbox.empty()
    assert len(given.accepted) == 1


def test_room_goes_to_threads_in_the_order_of_their_waits() -> None:
    budget = Budget(1, 1_000)
    order: list[int] = []
    assert budget.try_take(1)

    def take(number: int) -> None:
        budget.take_in_thread(1, 30.0)
        order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(3)]
    waiting = iter(range(1, 4))
    for thread in threads:
        thread.start()
        until_sync(partial(holds, lambda: len(budget._waiters), next(waiting)), "it waits")
    assert not budget.try_take(1), "who comes later does not overtake"
    for count in range(1, 4):
        budget.give_back(1, 1)
        until_sync(partial(holds, lambda: len(order), count), "the next one has its room")
    assert order == [0, 1, 2]


def holds(count: Callable[[], int], wanted: int) -> bool:
    return count() == wanted


def test_a_message_over_the_limit_has_room_alone() -> None:
    budget = Budget(10, 100)
    assert budget.try_take(500)
    assert not budget.try_take(1)
    budget.give_back(1, 500)
    assert budget.try_take(1)
