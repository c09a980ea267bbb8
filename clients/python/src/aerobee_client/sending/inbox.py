"""Sends of other threads on their way to the loop of their producer.

A send costs an append, and all that are appended within one turn of the loop cost one wake-up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.sending.accumulator import AnyFuture, fail
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.order.way import Way
from aerobee_wire.status import MqError


class Arrival(NamedTuple):
    """A send that was called. `queue`: the chosen one. `way`: of one that keeps an order. `future`:
    gets the outcome. `is_alone`: it shares its request with none."""

    message: Message
    queue: MessageQueue | None
    way: Way | None
    timeout_s: float
    future: AnyFuture
    is_alone: bool = False


# An Arrival of an iterable of its fields, without a call of Python.
arrival_of = partial(tuple.__new__, Arrival)
# Has the loop call a function; raises when there is no loop.
Wake = Callable[[Callable[[], None]], None]


class Inbox:
    """`accept`: starts a send that has taken its room, on the loop."""

    def __init__(self, budget: Budget, accept: Callable[[Arrival], None]) -> None:
        self._budget = budget
        self._accept = accept
        self._arrivals: deque[Arrival] = deque()
        self._is_woken = False

    def put(self, arrival: Arrival, wake: Wake) -> bool:
        """Starts a send, when there is room for it. `wake`: see Wake; what it raises, this raises,
        and starts nothing."""
        if not self._budget.try_take(arrival.message.size):
            return False
        self._append(arrival, wake)
        return True

    def put_later(self, arrival: Arrival, wake: Wake, *, block: bool) -> None:
        """As `put`, once there is room. Fails the send with FLOW_CONTROL when there is none within
        its timeout; without `block`, now."""
        try:
            if not block:
                raise self._budget.full()
            began_s = time.monotonic()
            self._budget.take_in_thread(arrival.message.size, arrival.timeout_s)
        except MqError as error:
            arrival.future.set_exception(error)
            return
        waited_s = time.monotonic() - began_s
        left_s = max(0.0, arrival.timeout_s - waited_s)
        self._append(arrival._replace(timeout_s=left_s), wake)

    def _append(self, arrival: Arrival, wake: Wake) -> None:
        self._arrivals.append(arrival)
        if not self._is_woken:
            self._is_woken = True
            try:
                wake(self.empty)
            except BaseException as error:
                self._refuse(error)  # a loop that starts later would never be woken for these
                raise

    def empty(self) -> None:
        """Starts all that were put until now. On the loop; and when that has ended, to fail what
        came too late."""
        for arrival in self._take_all():
            self._accept(arrival)

    def _refuse(self, error: BaseException) -> None:
        for arrival in self._take_all():
            self._budget.give_back(1, arrival.message.size)
            fail(arrival.future, error)

    def _take_all(self) -> Iterator[Arrival]:
        self._is_woken = False
        while self._arrivals:
            try:
                arrival = self._arrivals.popleft()
            except IndexError:  # another thread has taken the last one
                return
            yield arrival
