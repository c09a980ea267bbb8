"""Process each single send: reserve its budget, find its route, and put it into a batch.

Sends that keep an order are passed to OrderedSends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import lru_cache, partial

from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_client.cluster.route_cache import PublishInfo
from aerobee_client.errors import ClientClosed, NamesrvUnreachable
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.runtime.clock import Clock
from aerobee_client.send_result import SendResult
from aerobee_client.sending import send_request
from aerobee_client.sending.accumulator import Accumulator, Batch, BatchKey, SingleSend, fail
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.cross_thread_queue import QueuedSend
from aerobee_client.sending.order.ordered_sends import OrderedSends
from aerobee_client.sending.order.queue_choice import SendOrdering
from aerobee_client.sending.sender import Sender
from aerobee_wire.topics import is_retry

log = logging.getLogger(__name__)


WINDOW = 256  # the maximum number of one-way requests in flight


@lru_cache(maxsize=1024)
def _key_of_most(topic: str, is_plain: bool) -> BatchKey:
    """Return the batch key of sends without a chosen queue or a priority.

    The result is cached, because creating a key takes longer than finding the batch with that key.
    """
    return BatchKey(topic, is_plain, None, is_one_way=False)


@lru_cache(maxsize=1024)
def _key_of_usual(topic: str) -> BatchKey:
    """Return the batch key of sends without settings, a chosen queue or a priority."""
    return _key_of_most(topic, is_retry(topic))


class SingleSends:
    """Starts the single sends of one producer, on its event loop.

    `budget` limits the sends that wait for an answer. `catch_up` accepts the pending sends of other
    threads.
    """

    def __init__(
        self,
        sender: Sender,
        budget: Budget,
        clock: Clock,
        fault: LatencyFault | None,
        catch_up: Callable[[], None],
    ) -> None:
        self._sender = sender
        self._budget = budget
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._accumulator = Accumulator(self._deliver, budget, clock, fault)
        self.ordered = OrderedSends(sender, self._accumulator, budget, clock, catch_up)
        self.one_way = OneWaySends(sender, budget)
        self._alone: dict[asyncio.Task[None], SingleSend] = {}
        # The sends that wait for the route of their topic, by topic.
        self._without_route: dict[str, list[tuple[SingleSend, MessageQueue | None]]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def single(
        self, message: Message, queue: MessageQueue | None, timeout_s: float, added: str = ""
    ) -> tuple[SingleSend, asyncio.Future[SendResult]]:
        """Return a send and its future. `added` and errors are those of `Sender.prepare`."""
        future: asyncio.Future[SendResult] = self._loop.create_future()
        return self._sender.single(message, queue, timeout_s, future, added), future

    def start(self, send: SingleSend, queue: MessageQueue | None) -> bool:
        """Put a send into a batch if it fits in the budget and its route is known.

        Return False if it was not put into a batch.
        """
        info = self._sender.known_route(send.outgoing.message.topic)
        if info is None or not self._budget.try_take(send.size):
            return False
        self._add(send, queue, info)
        return True

    async def start_later(
        self,
        send: SingleSend,
        queue: MessageQueue | None,
        *,
        block: bool = True,
        is_one_way: bool = False,
    ) -> None:
        """Put a send into a batch as soon as it is in the budget and has its route.

        Raises MqError with the code FLOW_CONTROL if it does not fit in the budget within its
        timeout. If `block` is false, it raises this error at once.
        """
        if not self._budget.try_take(send.size):
            await self._wait_for_room(send, block=block)
        topic = send.outgoing.message.topic
        info = self._sender.known_route(topic) or await self._route(send)
        self._add(send, queue, info, is_one_way=is_one_way)

    async def send_alone(
        self,
        message: Message,
        queue: MessageQueue | None,
        timeout_s: float,
        *,
        block: bool = True,
    ) -> SendResult:
        """Send a message in a separate request, which a cancellation ends.

        Raises MqError like `start_later`.
        """
        send, _ = self.single(message, queue, timeout_s)
        if self._budget.try_take(send.size):
            return await self._deliver_alone(send, queue, timeout_s)
        await self._wait_for_room(send, block=block)
        left_s = (send.deadline_ms - self._clock.monotonic_ms()) / 1000
        return await self._deliver_alone(send, queue, left_s)

    async def send_in_order(
        self, message: Message, ordering: SendOrdering, timeout_s: float
    ) -> SendResult:
        """Send an ordered message and return the result."""
        future: asyncio.Future[SendResult] = self._loop.create_future()
        self.ordered.accept(self._sender.prepare(message), ordering, timeout_s, future)
        return await future

    async def post(self, message: Message, queue: MessageQueue | None, timeout_s: float) -> None:
        """Send one-way. Return when the send is in a batch; later failures are only logged."""
        send, future = self.single(message, queue, timeout_s)
        future.add_done_callback(_log_failure)
        await self.start_later(send, queue, is_one_way=True)

    async def post_in_order(
        self, message: Message, ordering: SendOrdering, timeout_s: float
    ) -> None:
        """Send a message that keeps an order one-way, as `post` does."""
        future: asyncio.Future[SendResult] = self._loop.create_future()
        future.add_done_callback(_log_failure)
        send = self.ordered.accept(self._sender.prepare(message), ordering, timeout_s, future)
        if send.ready is not None:
            await send.ready.wait()
        if future.done():
            future.result()

    def accept(self, queued: QueuedSend, *, has_room: bool = False) -> None:
        """Start a send without waiting. The future of `queued` gets the outcome.

        If the send does not fit in the budget, it fails with the code FLOW_CONTROL. `has_room` is
        true if it is already in the budget.
        """
        message, queue, ordering, timeout_s, future, is_alone = queued
        try:
            if ordering is not None:
                outgoing = self._sender.prepare(message)
                self.ordered.accept(outgoing, ordering, timeout_s, future, has_room=has_room)
                return
            send = self._sender.single(message, queue, timeout_s, future)
        except Exception as error:  # may be any error, such as a wrong type
            if has_room:
                self._budget.give_back(1, message.size)
            fail(future, error)
            return
        if not has_room and not self._budget.try_take(send.size):
            send.fail(self._budget.full())
        elif is_alone:
            task = self._loop.create_task(self._answer_alone(send, queue))
            self._alone[task] = send
            task.add_done_callback(self._alone.pop)
        elif (info := self._sender.known_route(message.topic)) is not None:
            self._add(send, queue, info)
        elif (waiting := self._without_route.get(message.topic)) is not None:
            waiting.append((send, queue))
        else:
            self._without_route[message.topic] = [(send, queue)]
            task = self._loop.create_task(self._ask_route(message.topic))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _answer_alone(self, send: SingleSend, queue: MessageQueue | None) -> None:
        """Send a message that is already in the budget in a separate request."""
        if not send.leaves():
            self._budget.give_back(1, send.size)
            return
        try:
            send.succeed(await self._deliver_alone(send, queue, send.timeout_s))
        except asyncio.CancelledError:
            send.fail(ClientClosed("producer"))
            raise
        except Exception as error:
            send.fail(error)

    async def _deliver_alone(
        self, send: SingleSend, queue: MessageQueue | None, timeout_s: float
    ) -> SendResult:
        """Deliver a send that is in the budget, and then remove it from the budget."""
        try:
            run = send_request.run_of([send.outgoing])
            return (await self._sender.send_run(run, queue, timeout_s))[0]
        finally:
            self._budget.give_back(1, send.size)

    async def _deliver(self, batch: Batch) -> None:
        await self._sender.deliver(batch)
        if batch.refusal is not None:
            await self.ordered.move(batch, batch.refusal)

    def _add(
        self,
        send: SingleSend,
        queue: MessageQueue | None,
        info: PublishInfo,
        *,
        is_one_way: bool = False,
    ) -> None:
        """Put a send into a batch. The send already has its room in the budget and its route."""
        message = send.outgoing.message
        if queue is None and not is_one_way and not info.by_priority:
            if message.encoded_settings or message.system_properties or message.sys_flag:
                key = _key_of_most(message.topic, send_request.is_plain(message))
            else:  # nearly all messages
                key = _key_of_usual(message.topic)
            self._accumulator.add(key, send, info)
            return
        is_plain = send_request.is_plain(message)
        priority = None
        if info.by_priority:
            priority, info = message.priority, info.of_priority(message.priority)
        key = BatchKey(message.topic, is_plain, queue, is_one_way, priority)
        self._accumulator.add(key, send, info)

    async def drain(self) -> None:
        """Wait until every send has an outcome."""
        while self._asking:
            await asyncio.gather(*self._asking)
        await self.ordered.drain()
        await self._accumulator.drain()
        await self.one_way.drain()
        await asyncio.gather(*self._alone)

    async def abort(self) -> None:
        """Fail every send that has no outcome with ClientClosed."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        alone = dict(self._alone)
        for task in alone:
            task.cancel()
        await asyncio.gather(*alone, return_exceptions=True)
        # The tasks of these sends had not begun, so they are still in the budget and have no
        # outcome.
        left: list[tuple[SingleSend, MessageQueue | None]]
        left = [(send, None) for send in alone.values() if not send.future.done()]
        left += [each for waiting in self._without_route.values() for each in waiting]
        self._without_route.clear()
        self._fail(left, ClientClosed("producer"))
        await self.ordered.abort()
        await self._accumulator.abort(ClientClosed("producer"))

    async def _wait_for_room(self, send: SingleSend, *, block: bool) -> None:
        if not block:
            raise self._budget.full()
        await self._budget.take(send.size, send.timeout_s)

    async def _route(self, send: SingleSend) -> PublishInfo:
        """Return the route of a send. On an error, remove the send from the budget."""
        try:
            return await self._sender.route_of(send)
        except BaseException:
            self._budget.give_back(1, send.size)
            raise

    async def _ask_route(self, topic: str) -> None:
        """Fetch a route once for all sends to a topic that wait for the route.

        If no name server answers, the sends whose deadline has passed fail.
        """
        waiting = self._without_route[topic]
        try:
            while waiting:
                try:
                    info = await self._sender.route_of(waiting[0][0])
                except NamesrvUnreachable as error:
                    self._fail(waiting[:1], error)
                    del waiting[:1]
                else:
                    for send, queue in waiting:
                        self._add(send, queue, info)
                    return
        except Exception as error:  # may be any error: otherwise the sends would wait forever
            self._fail(waiting, error)
        except asyncio.CancelledError:
            self._fail(waiting, ClientClosed("producer"))
            raise
        finally:
            del self._without_route[topic]

    def _fail(
        self, sends: Iterable[tuple[SingleSend, MessageQueue | None]], error: Exception
    ) -> None:
        """Fail sends that are in the budget but not in a batch."""
        for send, _ in sends:
            self._budget.give_back(1, send.size)
            send.fail(error)


def _log_failure(done: asyncio.Future[SendResult]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.debug("a one-way send failed: %s", error)


class OneWaySends:
    """The one-way sends of one producer in separate requests, on its event loop.

    Up to WINDOW requests are in flight; other sends wait. `budget` limits the sends in flight.
    """

    def __init__(self, sender: Sender, budget: Budget) -> None:
        self._sender = sender
        self._budget = budget
        self._room = asyncio.Semaphore(WINDOW)
        self._tasks: set[asyncio.Task[None]] = set()

    async def post(self, message: Message, queue: MessageQueue | None, timeout_s: float) -> None:
        """Send a message and return without waiting for the answer.

        Raises MqError like `Sender.prepare`, and the errors of the route query. Raises MqError with
        the code FLOW_CONTROL if the send does not fit in the budget within the timeout.
        """
        outgoing, size = self._sender.prepare(message, queue), message.size
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        await self._budget.take(size, timeout_s)
        try:
            target = queue or await self._sender.next_queue(message)
            async with asyncio.timeout_at(deadline_s):
                await self._room.acquire()
        except TimeoutError:
            self._budget.give_back(1, size)
            raise self._budget.full() from None
        except BaseException:
            self._budget.give_back(1, size)
            raise
        task = asyncio.create_task(self._sender.post(outgoing, target))
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, size))

    async def drain(self) -> None:
        """Wait until no send is in flight."""
        await asyncio.gather(*self._tasks)

    def _done(self, size: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        self._budget.give_back(1, size)
