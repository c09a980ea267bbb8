"""Pass sends of other threads to the event loop of their producer.

To queue a send costs one append. All sends that are queued within one iteration of the loop cost
one wake-up together.
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
from aerobee_client.sending.order.queue_choice import SendOrdering
from aerobee_wire.status import MqError


class QueuedSend(NamedTuple):
    """A send queued from another thread.

    `queue` is the queue that the caller chose, or None. `ordering` has the ordering options, or
    None if the send is not ordered. `future` gets the outcome. With `is_alone`, the message is sent
    in a request of its own.
    """

    message: Message
    queue: MessageQueue | None
    ordering: SendOrdering | None
    timeout_s: float
    future: AnyFuture
    is_alone: bool = False


# Makes a QueuedSend from an iterable of its fields, without running Python code.
make_queued_send = partial(tuple.__new__, QueuedSend)
# A function that schedules another function on the event loop. It raises if no loop runs.
Wake = Callable[[Callable[[], None]], None]


class CrossThreadQueue:
    """A queue of sends.

    `accept` starts a send that is already in the budget; it runs on the loop.
    """

    def __init__(self, budget: Budget, accept: Callable[[QueuedSend], None]) -> None:
        self._budget = budget
        self._accept = accept
        self._sends: deque[QueuedSend] = deque()
        self._is_woken = False

    def put(self, send: QueuedSend, wake: Wake) -> bool:
        """Queue a send if it fits in the budget, and wake the loop. Return whether it fits.

        `wake` schedules a function on the loop. If `wake` raises, the queued sends fail, and this
        method raises the same error.
        """
        if not self._budget.try_take(send.message.size):
            return False
        self._append(send, wake)
        return True

    def put_later(self, send: QueuedSend, wake: Wake, *, block: bool) -> None:
        """Wait until a send fits in the budget, then queue it.

        If it does not fit within its timeout, the send fails with the code FLOW_CONTROL. If `block`
        is false, it fails at once.
        """
        try:
            if not block:
                raise self._budget.full()
            began_s = time.monotonic()
            self._budget.take_in_thread(send.message.size, send.timeout_s)
        except MqError as error:
            send.future.set_exception(error)
            return
        waited_s = time.monotonic() - began_s
        left_s = max(0.0, send.timeout_s - waited_s)
        self._append(send._replace(timeout_s=left_s), wake)

    def _append(self, send: QueuedSend, wake: Wake) -> None:
        self._sends.append(send)
        if not self._is_woken:
            self._is_woken = True
            try:
                wake(self.empty)
            except BaseException as error:
                # otherwise a loop that starts later would never be woken for these sends
                self._refuse(error)
                raise

    def empty(self) -> None:
        """Start all queued sends. Runs on the loop. After the loop has ended, late sends fail."""
        for send in self._take_all():
            self._accept(send)

    def _refuse(self, error: BaseException) -> None:
        for send in self._take_all():
            self._budget.give_back(1, send.message.size)
            fail(send.future, error)

    def _take_all(self) -> Iterator[QueuedSend]:
        self._is_woken = False
        while self._sends:
            try:
                send = self._sends.popleft()
            except IndexError:  # another thread has taken the last one
                return
            yield send
