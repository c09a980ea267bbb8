"""Put ordered sends into batches.

A message of a message group goes to the queue that every producer chooses for the group. Other
ordered messages go to the queue that their selector returns.

A send gets its position in the order when it is called. Sends of a topic that wait for the route or
for the budget form a queue, which is processed from its front. Only one request at a time is in
flight to a queue. If a send fails, later sends of the same order fail too, so that no message
overtakes another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from weakref import WeakValueDictionary

from aerobee_client.cluster.route_cache import PublishInfo
from aerobee_client.errors import ClientClosed, NamesrvUnreachable
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.runtime.clock import Clock
from aerobee_client.send_result import SendResult
from aerobee_client.sending.accumulator import (
    Accumulator,
    AnyFuture,
    Batch,
    BatchKey,
    SingleSend,
    fail,
)
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.order.queue_choice import SendOrdering, check_selected
from aerobee_client.sending.send_request import Outgoing, is_plain
from aerobee_client.sending.sender import Sender
from aerobee_wire.status import MqError


class OrderedSend(SingleSend):
    """A send with a position in an order.

    `has_room` is true if the send is in the budget. `ready` is set when a one-way send is in the
    budget and has its queue.
    """

    __slots__ = ("_has_left", "_timer", "has_room", "ordering", "queue", "ready", "sequence")

    def __init__(
        self,
        outgoing: Outgoing,
        future: AnyFuture,
        deadline_ms: int,
        timeout_s: float,
        ordering: SendOrdering,
        *,
        has_room: bool,
    ) -> None:
        super().__init__(outgoing, outgoing.message.given.size, future, deadline_ms, timeout_s)
        self.ordering = ordering
        self.has_room = has_room
        self.queue: MessageQueue | None = None
        self.sequence: SendSequence | None = None
        self.ready = asyncio.Event() if ordering.is_one_way else None
        self._timer: asyncio.TimerHandle | None = None
        self._has_left = False

    @property
    def message(self) -> Message:
        """The message as the caller gave it, before compression."""
        return self.outgoing.message.given

    def take_queue(self, queue: MessageQueue) -> None:
        self.queue = queue

    def take_room(self) -> None:
        self.has_room = True

    def begin_wait(self, timer: asyncio.TimerHandle) -> None:
        """Set the timer that ends the wait of this send at its deadline."""
        self._timer = timer

    def end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.ready is not None:
            self.ready.set()

    def leaves(self) -> bool:
        """Return whether to send it now. Works again after a move to another batch."""
        if self._has_left:
            return not self.future.done()
        self._has_left = True
        return super().leaves()

    def join(self, sequence: SendSequence) -> None:
        self.sequence = sequence
        sequence.append(self)

    def succeed(self, result: SendResult) -> None:
        super().succeed(result)
        if self.sequence is not None:
            self.sequence.shorten()

    def fail(self, error: BaseException) -> None:
        if self.sequence is None:
            super().fail(error)
        else:
            self.sequence.fail_from(self, error)


class SendSequence:
    """The sends of one message group, or those that selectors put into one queue.

    `catch_up` accepts the sends that other threads have queued, so that they also fail if an
    earlier send fails.
    """

    __slots__ = ("__weakref__", "_catch_up", "_sends")

    def __init__(self, catch_up: Callable[[], None]) -> None:
        self._catch_up = catch_up
        self._sends: deque[OrderedSend] = deque()

    def append(self, send: OrderedSend) -> None:
        self.shorten()
        self._sends.append(send)

    def shorten(self) -> None:
        """Remove the sends at the front that already have an outcome."""
        sends = self._sends
        while sends and sends[0].future.done():
            sends.popleft()

    def fail_from(self, send: OrderedSend, error: BaseException) -> None:
        """Fail this send and all later sends of the sequence."""
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


class OrderedSends:
    """The ordered sends of one producer.

    `catch_up` accepts the pending sends of other threads.
    """

    def __init__(
        self,
        sender: Sender,
        accumulator: Accumulator,
        budget: Budget,
        clock: Clock,
        catch_up: Callable[[], None],
    ) -> None:
        self._sender = sender
        self._accumulator = accumulator
        self._budget = budget
        self._clock = clock
        self._catch_up = catch_up
        # Only the sends of an order refer to their sequence, so it is deleted with the last of
        # them.
        self._sequences: WeakValueDictionary[Hashable, SendSequence] = WeakValueDictionary()
        self._waiting: dict[str, deque[OrderedSend]] = {}  # by topic
        # Batches that move to other queues, by topic. Meanwhile, other sends of the topic wait.
        self._moves: dict[str, set[asyncio.Future[None]]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    def accept(
        self,
        outgoing: Outgoing,
        ordering: SendOrdering,
        timeout_s: float,
        future: AnyFuture,
        *,
        has_room: bool = False,
    ) -> OrderedSend:
        """Start a send of a checked message. `future` gets the outcome.

        `has_room` is true if the send is already in the budget.
        """
        message = outgoing.message
        deadline_ms = self._clock.monotonic_ms() + int(timeout_s * 1000)
        send = OrderedSend(outgoing, future, deadline_ms, timeout_s, ordering, has_room=has_room)
        if ordering.selector is None:
            self._join(send, message.order_key)
        waiting = self._waiting.get(message.topic)
        is_moving = message.topic in self._moves
        info = None if is_moving else self._sender.known_route(message.topic)
        if info is not None:
            self._choose(send, info)
        if (
            not send.has_room
            and _is_next_to_take_room(waiting)
            and self._budget.try_take(send.size)
        ):
            send.take_room()
        if not send.has_room and not ordering.block:
            send.fail(self._budget.full())
        if send.future.done():
            self._drop(send)
        elif waiting is None and info is not None and send.has_room:
            self._place(send, info)
        else:
            self._wait(send)
        return send

    async def drain(self) -> None:
        """Wait until no send waits for the budget or for its route."""
        while self._serving:
            await asyncio.gather(*self._serving)

    async def abort(self) -> None:
        """Fail every waiting send with ClientClosed."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        for waiting in self._waiting.values():  # the task of these sends had not begun
            self._abandon(waiting)
        self._waiting.clear()

    def _abandon(self, waiting: Iterable[OrderedSend]) -> None:
        for send in waiting:
            send.fail(ClientClosed("producer"))
            self._drop(send)

    # ---- its place in the order, and its queue ----

    def _join(self, send: OrderedSend, order: Hashable) -> None:
        key = (send.message.topic, order)
        sequence = self._sequences.get(key)
        if sequence is None:
            sequence = self._sequences[key] = SendSequence(self._catch_up)
        send.join(sequence)

    def _choose(self, send: OrderedSend, info: PublishInfo) -> None:
        """Choose the queue of a send. If the selector raises, the send fails with that error."""
        message, selector = send.message, send.ordering.selector
        now_ms = self._clock.monotonic_ms()
        try:
            if selector is None:
                send.take_queue(info.queue_of_group(message, now_ms))
            else:
                queue = check_selected(selector(message, info.queues_in_order(now_ms)), message)
                send.take_queue(queue)
                self._join(send, queue)
        except (Exception, SystemExit) as error:  # may be any error of the application's selector
            send.fail(error)

    def _place(self, send: OrderedSend, info: PublishInfo) -> None:
        message, ordering = send.outgoing.message, send.ordering
        key = BatchKey(
            message.topic,
            is_plain(message),
            send.queue,
            ordering.is_one_way,
            is_group=ordering.selector is None,
        )
        self._accumulator.add(key, send, info, is_alone=ordering.is_alone)
        send.end_wait()

    def _drop(self, send: OrderedSend) -> None:
        """Release the budget and the timer of a finished send that is not in a batch."""
        if send.has_room:
            self._budget.give_back(1, send.size)
        send.end_wait()

    # ---- the waiting sends of a topic ----

    def _wait(self, send: OrderedSend) -> None:
        topic, loop = send.message.topic, asyncio.get_running_loop()
        waiting = self._waiting.get(topic)
        if waiting is None:
            waiting = self._waiting[topic] = deque()
            task = loop.create_task(self._serve(topic, waiting))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        waiting.append(send)
        send.begin_wait(loop.call_later(send.timeout_s, self._expire, send, waiting))

    def _expire(self, send: OrderedSend, waiting: deque[OrderedSend]) -> None:
        """Fail a send that still waits at its deadline."""
        if send.queue is None:
            self._fail_without_queue(send, waiting, self._sender.no_route())
        else:
            send.fail(self._budget.full())

    async def _serve(self, topic: str, waiting: deque[OrderedSend]) -> None:
        """Process the waiting sends of a topic from the front until there are none."""
        try:
            while waiting:
                first = waiting[0]
                info = None if first.future.done() else await self._make_ready(first, waiting)
                waiting.popleft()
                if info is None or first.future.done():
                    self._drop(first)
                else:
                    self._place(first, info)
        except asyncio.CancelledError:
            self._abandon(waiting)
            raise
        finally:
            del self._waiting[topic]

    async def _make_ready(
        self, first: OrderedSend, waiting: deque[OrderedSend]
    ) -> PublishInfo | None:
        """Wait until the first waiting send is in the budget and has its route.

        Return the route, or None if the wait has failed.
        """
        if not first.has_room:
            remaining_s = (first.deadline_ms - self._clock.monotonic_ms()) / 1000
            try:
                await self._budget.take(first.size, max(0.0, remaining_s))
            except MqError as error:
                first.fail(error)
                return None
            first.take_room()
        try:
            info = await self._settled_route(first)
        except NamesrvUnreachable as error:  # the deadline of this send has passed
            self._fail_without_queue(first, waiting, error)
            return None
        except Exception as error:  # may be any error: otherwise the sends would wait forever
            for send in list(waiting):
                if send.queue is None:
                    send.fail(error)
            first.fail(error)
            return None
        for send in list(waiting):
            if send.queue is None and not send.future.done():
                self._choose(send, info)
        if first.ordering.selector is None and not first.future.done():
            self._choose(first, info)  # the route may have changed while it waited
        return info

    async def _settled_route(self, send: OrderedSend) -> PublishInfo:
        """Wait until no batch of a topic is moving, and return the route of the topic."""
        topic = send.message.topic
        while True:
            while moves := self._moves.get(topic):
                await asyncio.wait(moves)
            info = await self._sender.route_of(send)
            if topic not in self._moves:
                return info

    # ---- queues that no longer accept messages ----

    async def move(self, batch: Batch, refusal: MqError) -> None:
        """Move the sends of a batch of message groups, whose queue refused them, to other queues.

        Sends that wait for the same queue move too. The new route determines the new queues. If the
        queue of a group has not changed, its sends fail with the refusal.
        """
        topic, queue = batch.key.topic, batch.queue
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        moves = self._moves.setdefault(topic, set())
        moves.add(moved)
        try:
            info = await self._sender.changed_route(topic)
            for send in [*batch.release(), *self._accumulator.take_back(queue)]:
                assert isinstance(send, OrderedSend), "only these are of message groups"
                if not send.future.done():
                    self._choose(send, info)
                    if send.queue == queue:
                        send.fail(refusal)
                if send.future.done():
                    self._drop(send)
                else:
                    self._place(send, info)
        except asyncio.CancelledError:
            for send in batch.sends:
                send.fail(ClientClosed("producer"))
            raise
        except MqError:  # without a route, the broker's refusal explains more
            for send in batch.sends:
                send.fail(refusal)
        finally:
            moved.set_result(None)
            moves.discard(moved)
            if not moves:
                del self._moves[topic]

    @staticmethod
    def _fail_without_queue(
        send: OrderedSend, waiting: deque[OrderedSend], error: BaseException
    ) -> None:
        """Fail a send that has no queue yet.

        Its selector could have chosen the same queue as a later send's selector. Therefore all
        later sends with selectors and without a queue fail too, so that none overtakes it.
        """
        send.fail(error)
        if send.ordering.selector is not None:
            behind = list(waiting)[waiting.index(send) + 1 :]
            for other in behind:
                if other.queue is None and other.ordering.selector is not None:
                    other.fail(error)


def _is_next_to_take_room(waiting: deque[OrderedSend] | None) -> bool:
    """Return whether all sends that wait before the next one are already in the budget."""
    return not waiting or waiting[-1].has_room


def _overtaking(error: BaseException) -> BaseException:
    """Return the error for the sends after a failed send."""
    if not isinstance(error, MqError):
        return error
    return MqError(
        error.code,
        f"an earlier message of the same order failed, and none may overtake it: {error.message}",
        retryable=error.retryable,
        retry_after_ms=error.retry_after_ms,
        about=error.about,
    )
