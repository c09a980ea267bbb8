"""Keep the sends of one order that have no outcome yet.

If one fails, those behind it fail too, so that no message overtakes another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.send_result import SendResult
from aerobee_client.sending.accumulator import AnyFuture, SingleSend, fail
from aerobee_client.sending.order.way import Way
from aerobee_client.sending.send_request import Outgoing
from aerobee_wire.status import MqError


class OrderedSend(SingleSend):
    """A send with a place in an order.

    `has_room`: whether it has taken its share of the budget. `ready`: for a one-way send, set when
    it has its room and its queue.
    """

    __slots__ = ("_has_left", "_timer", "chain", "has_room", "queue", "ready", "way")

    def __init__(
        self,
        outgoing: Outgoing,
        future: AnyFuture,
        deadline_ms: int,
        timeout_s: float,
        way: Way,
        *,
        has_room: bool,
    ) -> None:
        super().__init__(outgoing, outgoing.message.given.size, future, deadline_ms, timeout_s)
        self.way = way
        self.has_room = has_room
        self.queue: MessageQueue | None = None
        self.chain: Chain | None = None
        self.ready = asyncio.Event() if way.is_one_way else None
        self._timer: asyncio.TimerHandle | None = None
        self._has_left = False

    @property
    def message(self) -> Message:
        """The message as it was given, not compressed."""
        return self.outgoing.message.given

    def take_queue(self, queue: MessageQueue) -> None:
        self.queue = queue

    def take_room(self) -> None:
        self.has_room = True

    def wait_in_line(self, timer: asyncio.TimerHandle) -> None:
        """Note the timer that ends its wait at its deadline."""
        self._timer = timer

    def leave_line(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.ready is not None:
            self.ready.set()

    def leaves(self) -> bool:
        """Return whether it leaves now, also if it moved to another batch after a refusal."""
        if self._has_left:
            return not self.future.done()
        self._has_left = True
        return super().leaves()

    def join(self, chain: Chain) -> None:
        self.chain = chain
        chain.append(self)

    def succeed(self, result: SendResult) -> None:
        super().succeed(result)
        if self.chain is not None:
            self.chain.shorten()

    def fail(self, error: BaseException) -> None:
        if self.chain is None:
            super().fail(error)
        else:
            self.chain.fail_from(self, error)


class Chain:
    """The sends of a message group, or those that selectors put into one queue.

    `catch_up` accepts the sends that other threads have called before now. They are also behind a
    failure.
    """

    __slots__ = ("__weakref__", "_catch_up", "_sends")

    def __init__(self, catch_up: Callable[[], None]) -> None:
        self._catch_up = catch_up
        self._sends: deque[OrderedSend] = deque()

    def append(self, send: OrderedSend) -> None:
        self.shorten()
        self._sends.append(send)

    def shorten(self) -> None:
        """Remove the sends at the front that have their outcome."""
        sends = self._sends
        while sends and sends[0].future.done():
            sends.popleft()

    def fail_from(self, send: OrderedSend, error: BaseException) -> None:
        """Fail this send and those behind it."""
        if send.future.done():
            return
        self._catch_up()
        fail(send.future, error)
        is_behind = False
        for other in list(self._sends):
            if is_behind:
                fail(other.future, _overtaking(error))
            is_behind = is_behind or other is send
        self.shorten()


def _overtaking(error: BaseException) -> BaseException:
    """Return the error for the sends behind a failed send."""
    if not isinstance(error, MqError):
        return error
    return MqError(
        error.code,
        f"an earlier message of the same order failed, and none may overtake it: {error.message}",
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms,
        about=error.about,
    )
