"""Sends of other threads on their way to the loop of their producer.

A send costs an append, and all that are appended within one turn of the loop cost one wake-up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.send_result import SendResult
from aerobee_client.sending.budget import Budget
from aerobee_wire.status import MqError


class Arrival(NamedTuple):
    """`future`: gets the outcome. It has taken its room."""

    message: Message
    queue: MessageQueue | None
    timeout_s: float
    future: Future[SendResult]


class Inbox:
    """`wake`: has the loop call a function; raises MqError when there is none. `accept`: starts a
    send, on the loop."""

    def __init__(
        self,
        budget: Budget,
        wake: Callable[[Callable[[], None]], None],
        accept: Callable[[Arrival], None],
    ) -> None:
        self._budget = budget
        self._wake = wake
        self._accept = accept
        self._arrivals: deque[Arrival] = deque()
        self._is_woken = False

    def put(self, arrival: Arrival, *, block: bool) -> None:
        """Starts a send, once it has room. Fails it with FLOW_CONTROL when there is none within its
        timeout; without `block`, now. Raises what `wake` raises."""
        size = len(arrival.message.body)
        try:
            if not self._budget.try_take(size):
                if not block:
                    raise self._budget.full()
                began_s = time.monotonic()
                self._budget.take_in_thread(size, arrival.timeout_s)
                waited_s = time.monotonic() - began_s
                arrival = arrival._replace(timeout_s=max(0.0, arrival.timeout_s - waited_s))
        except MqError as error:
            arrival.future.set_exception(error)
            return
        self._arrivals.append(arrival)
        if not self._is_woken:
            self._is_woken = True
            self._wake(self.empty)

    def empty(self) -> None:
        """On the loop; and when that has ended, to fail what came too late."""
        self._is_woken = False
        while self._arrivals:
            self._accept(self._arrivals.popleft())
