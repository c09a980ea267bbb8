"""Put ordered sends into batches.

A message of a message group goes to the queue that every producer chooses for the group. Other
messages go to the queue that their selector returns.

A send gets its place in the order when it is called. Sends of a topic that wait for the route or
for room form a line, which is served from its front. In the accumulator, one request at a time is
in flight to their queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from weakref import WeakValueDictionary

from aerobee_client.cluster.route_cache import PublishInfo
from aerobee_client.errors import ClientClosed, NamesrvUnreachable
from aerobee_client.runtime.clock import Clock
from aerobee_client.sending.accumulator import Accumulator, AnyFuture, Batch, BatchKey
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.order.chain import Chain, OrderedSend
from aerobee_client.sending.order.selectors import check_selected
from aerobee_client.sending.order.way import Way
from aerobee_client.sending.send_request import Outgoing, is_plain
from aerobee_client.sending.sender import Sender
from aerobee_wire.status import MqError


class OrderedSends:
    """The ordered sends of one producer. `catch_up`: see Chain."""

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
        # The sends of an order hold their chain, which is deleted with the last of them.
        self._chains: WeakValueDictionary[Hashable, Chain] = WeakValueDictionary()
        self._lines: dict[str, deque[OrderedSend]] = {}  # by topic
        # By topic: batches that move to other queues. Meanwhile, other sends of the topic wait in
        # line.
        self._moves: dict[str, set[asyncio.Future[None]]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    def accept(
        self,
        outgoing: Outgoing,
        way: Way,
        timeout_s: float,
        future: AnyFuture,
        *,
        has_room: bool = False,
    ) -> OrderedSend:
        """Start a send of a message that was checked. `future` gets its outcome.

        `has_room`: whether it has already taken its share of the budget.
        """
        message = outgoing.message
        deadline_ms = self._clock.monotonic_ms() + int(timeout_s * 1000)
        send = OrderedSend(outgoing, future, deadline_ms, timeout_s, way, has_room=has_room)
        if way.selector is None:
            self._join(send, message.order_key)
        line = self._lines.get(message.topic)
        is_moving = message.topic in self._moves
        info = None if is_moving else self._sender.known_route(message.topic)
        if info is not None:
            self._choose(send, info)
        if not send.has_room and _is_next_to_take_room(line) and self._budget.try_take(send.size):
            send.take_room()
        if not send.has_room and not way.block:
            send.fail(self._budget.full())
        if send.future.done():
            self._drop(send)
        elif line is None and info is not None and send.has_room:
            self._place(send, info)
        else:
            self._wait_in_line(send)
        return send

    async def drain(self) -> None:
        """Wait until no send waits in a line."""
        while self._serving:
            await asyncio.gather(*self._serving)

    async def abort(self) -> None:
        """Fail every send that waits in a line with ClientClosed."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        for line in self._lines.values():  # the task of this line had not begun
            self._abandon(line)
        self._lines.clear()

    def _abandon(self, line: Iterable[OrderedSend]) -> None:
        for send in line:
            send.fail(ClientClosed("producer"))
            self._drop(send)

    # ---- its place in the order, and its queue ----

    def _join(self, send: OrderedSend, order: Hashable) -> None:
        key = (send.message.topic, order)
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = Chain(self._catch_up)
        send.join(chain)

    def _choose(self, send: OrderedSend, info: PublishInfo) -> None:
        """Set the queue of a send. If choosing raises, the send fails with that error."""
        message, selector = send.message, send.way.selector
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
        message, way = send.outgoing.message, send.way
        key = BatchKey(
            message.topic,
            is_plain(message),
            send.queue,
            way.is_one_way,
            is_group=way.selector is None,
        )
        self._accumulator.add(key, send, info, is_alone=way.is_alone)
        send.leave_line()

    def _drop(self, send: OrderedSend) -> None:
        """Clean up after a send that has its outcome and is not in a batch."""
        if send.has_room:
            self._budget.give_back(1, send.size)
        send.leave_line()

    # ---- the line of a topic ----

    def _wait_in_line(self, send: OrderedSend) -> None:
        topic, loop = send.message.topic, asyncio.get_running_loop()
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = deque()
            task = loop.create_task(self._serve(topic, line))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        line.append(send)
        send.wait_in_line(loop.call_later(send.timeout_s, self._expire, send, line))

    def _expire(self, send: OrderedSend, line: deque[OrderedSend]) -> None:
        """Fail a send that waits in line, perhaps behind others, at its deadline."""
        if send.queue is None:
            self._fail_without_queue(send, line, self._sender.no_route())
        else:
            send.fail(self._budget.full())

    async def _serve(self, topic: str, line: deque[OrderedSend]) -> None:
        """Serve a line from its front until it is empty."""
        try:
            while line:
                first = line[0]
                info = None if first.future.done() else await self._make_ready(first, line)
                line.popleft()
                if info is None or first.future.done():
                    self._drop(first)
                else:
                    self._place(first, info)
        except asyncio.CancelledError:
            self._abandon(line)
            raise
        finally:
            del self._lines[topic]

    async def _make_ready(self, first: OrderedSend, line: deque[OrderedSend]) -> PublishInfo | None:
        """Wait until the send at the front of a line has its room and its route.

        Returns None if that has failed.
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
            self._fail_without_queue(first, line, error)
            return None
        except Exception as error:  # may be any error: otherwise the sends would wait forever
            for send in list(line):
                if send.queue is None:
                    send.fail(error)
            first.fail(error)
            return None
        for send in list(line):
            if send.queue is None and not send.future.done():
                self._choose(send, info)
        if first.way.selector is None and not first.future.done():
            self._choose(first, info)  # the route may have changed while it waited
        return info

    async def _settled_route(self, send: OrderedSend) -> PublishInfo:
        """Return the route of a topic, once none of its batches is moving."""
        topic = send.message.topic
        while True:
            while moves := self._moves.get(topic):
                await asyncio.wait(moves)
            info = await self._sender.route_of(send)
            if topic not in self._moves:
                return info

    # ---- queues that take no more messages ----

    async def move(self, batch: Batch, refusal: MqError) -> None:
        """Move sends of message groups to other queues after their queue refused them.

        Sends that wait behind them move too. The route gives the new queues. If the queue of a
        group has not changed, its sends fail with the refusal.
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
        send: OrderedSend, line: deque[OrderedSend], error: BaseException
    ) -> None:
        """Fail a send that has no queue yet.

        It is unknown which queues the selectors would choose for the sends behind it. These sends
        fail too, so that none overtakes it.
        """
        send.fail(error)
        if send.way.selector is not None:
            behind = list(line)[line.index(send) + 1 :]
            for other in behind:
                if other.queue is None and other.way.selector is not None:
                    other.fail(error)


def _is_next_to_take_room(line: deque[OrderedSend] | None) -> bool:
    """Return whether all sends before it in line have their room."""
    return not line or line[-1].has_room
