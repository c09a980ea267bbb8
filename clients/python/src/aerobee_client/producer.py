"""Sending messages: the class for asyncio.

Single sends that come while a request is in flight leave together in the next one: nothing waits
for a timer (`accumulate`). Each has its own result, deadline and cancellation. Who has 65,536 of
them under way, or 32 MiB, waits for room.

A send succeeds or fails within `send_timeout`, retries included. While no broker of the topic can
be reached, it retries until then, with pauses; so a producer with a long timeout outlasts a
broker's restart. A retry can store a duplicate: a connection that breaks does not tell whether the
broker had stored the message. Both copies then have the same message id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Unpack

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.latency_detector import LatencyDetector
from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_client.cluster.transport import Transport
from aerobee_client.errors import ClientClosed
from aerobee_client.message import Message, check_message, check_messages
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.hooks import HookedBatch, begin_send, begin_single_send, tell
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.observing.statistics import ProducerStatistics
from aerobee_client.options.bounds import check_duration
from aerobee_client.options.names import with_settings
from aerobee_client.options.producer import MAX_TIMEOUT_S, ProducerOptions, ProducerSettings
from aerobee_client.requesting.requests import Requests
from aerobee_client.runtime.clock import Clock
from aerobee_client.runtime.facade import StartedClient
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.send_result import DroppedReplies, Reply, SendResult
from aerobee_client.sending.accumulator import fail
from aerobee_client.sending.batch import BatchSend
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.callbacks import Callback, refused, report
from aerobee_client.sending.inbox import Arrival, Inbox
from aerobee_client.sending.order.selectors import Selector
from aerobee_client.sending.order.way import Choice
from aerobee_client.sending.sender import Sender
from aerobee_client.sending.single_sends import SingleSends
from aerobee_wire.topics import check_group

DEFAULT_GROUP = "DEFAULT_PRODUCER"


class AsyncProducer(StartedClient):
    """Sends messages; for asyncio. `async with AsyncProducer(...) as producer:` starts and closes.

    `send_timeout`, `retries`, `max_message_size`, `default_queue_count`, `latency_fault`,
    `accumulate`, `max_pending_messages` and `max_pending_bytes`: see ProducerOptions. `transport`
    and `clock` are for tests. Raises INVALID_PARAMETER.
    """

    # Whether it takes notices, of every broker, from its start on.
    _whole_cluster = False

    def __init__(
        self,
        producer_group: str = DEFAULT_GROUP,
        *,
        namesrv: str | Sequence[str] | None = None,
        transport: Transport | None = None,
        clock: Clock | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        check_group(producer_group)
        self._options = with_settings(ProducerOptions, settings)
        self._timeout_s = self._options.send_timeout.total_seconds()
        self.producer_group = producer_group
        self._namesrv = namesrv
        self._transport = transport
        self._clock = clock
        self._interceptors = tuple(self._options.interceptors)
        self._fault: LatencyFault | None = None
        if self._options.latency_fault:
            self._fault = LatencyFault(self._options.latency_table_ms)
        self._detector: LatencyDetector | None = None
        self._instance: ClientInstance | None = None
        self._sender: Sender | None = None
        self._singles: SingleSends | None = None
        self._requests: Requests | None = None
        self._budget = Budget(self._options.max_pending_messages, self._options.max_pending_bytes)
        self._inbox = Inbox(self._budget, self._accept)
        self._sends = 0
        self._idle = asyncio.Event()

    async def start(self) -> None:
        """Raises INVALID_PARAMETER when no name server is given. Connects at the first send."""
        PROCESS.check()
        if self._instance is not None:
            return
        self._idle = asyncio.Event()  # of this loop: another start may be in another
        self._instance = ClientInstance(
            self._namesrv,
            default_queue_count=self._options.default_queue_count,
            transport=self._transport,
            clock=self._clock,
        )
        self._instance.start(
            partial(self._heartbeat, self._instance),
            self._on_notice,
            watches=self._whole_cluster,
            whole_cluster=self._whole_cluster,
        )
        if self._fault is not None and self._options.latency_detector:
            self._detector = LatencyDetector(
                self._instance,
                self._fault,
                partial(self._heartbeat, self._instance),
                interval_s=self._options.detect_interval.total_seconds(),
                timeout_s=self._options.detect_timeout.total_seconds(),
            )
        self._sender = Sender(
            self._instance, self.producer_group, self._options, self._fault, self._requested
        )
        self._singles = SingleSends(
            self._sender, self._budget, self._instance.clock, self._fault, self._inbox.empty
        )
        self._requests = Requests(
            self._instance,
            lambda message, timeout: self.send(message, timeout=timeout),
            self._sender.check_whole,
        )

    async def close(self) -> None:
        """Waits for the sends in flight, unregisters and disconnects. When it is cancelled it does
        not wait for the sends. May be called twice."""
        if PROCESS.is_child:
            return  # what is under way is the parent's
        instance, self._instance, self._sender = self._instance, None, None
        singles, self._singles = self._singles, None
        if instance is None or singles is None:
            return
        if self._requests is not None:
            self._requests.close()
        async with AsyncExitStack() as finally_:
            finally_.push_async_callback(instance.close)
            finally_.push_async_callback(singles.abort)
            if self._detector is not None:
                finally_.push_async_callback(self._detector.close)
            if self._sends:
                await self._idle.wait()  # each send has its own timeout
            await singles.drain()

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """It is told of the sends from now on, after those that are there."""
        self._interceptors = (*self._interceptors, interceptor)

    def _requested(
        self, topic: str, message_count: int, elapsed_s: float, error: BaseException | None
    ) -> None:
        """After a request with messages."""
        if self._interceptors:
            told = (topic, message_count, elapsed_s, error)
            tell(self._interceptors, "after_send_request", *told)

    def statistics(self) -> ProducerStatistics:
        """What this producer has done since its start. Each heartbeat tells the brokers, and
        `aerobee clients --json` shows it. Zeros while it is not started."""
        if self._sender is None:
            return ProducerStatistics()
        return ProducerStatistics.of(self._sender.tally, *self._budget.taken())

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that `topic` can be written to now. Raises like `send`."""
        with self._sending() as (sender, _):
            return await sender.queues(topic)

    async def check(self, message: Message) -> None:
        """Check a message as `send` does before the message leaves, without sending it.

        Args:
            message: the message that is to be sent later.

        Raises:
            MqError: the topic does not exist or does not accept messages, or the body or the
                properties are too large.
        """
        check_message(message)
        with self._sending() as (sender, _):
            sender.check_whole(message)
            await sender.queues(message.topic)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout: timedelta | None = None,
        accumulate: bool | None = None,
        block: bool = True,
    ) -> SendResult:
        """Stores one message; in `queue` when given, in the one that `selector` returns, or in that
        of its message group, and then in no other.

        Messages of a group, and those that selectors put into one queue, keep the order of these
        calls: one request at a time is in flight to their queue, and when a message fails, those of
        its order that were sent behind it fail with it.

        `accumulate`: overrides the producer's. `block`: whether to wait, within the timeout, while
        too many sends are under way. Raises MqError: a refusal (MESSAGE_ILLEGAL, NO_PERMISSION,
        TOPIC_NOT_EXIST, …), FLOW_CONTROL (no room: nothing was sent), NamesrvUnreachable,
        BrokerUnreachable, RequestTimeout (it may have been stored); and what the selector raises.
        """
        check_message(message)
        added, hooked, singles = None, None, self._singles
        if self._interceptors:
            message, added, hooked = begin_single_send(message, self._interceptors)
        try:
            ordered = selector is not None or message.order_key
            replaces = added is not None and added.name in message.properties
            if singles is None or ordered or replaces or not self._accumulates(accumulate):
                if added is not None:
                    message = added.copied_to(message)
                choice = Choice(queue, selector)
                result = await self._send(message, choice, timeout, accumulate, block)
            else:
                if PROCESS.is_child:
                    PROCESS.check()
                text = "" if added is None else added.text
                send, future = singles.single(message, queue, self._seconds(timeout), text)
                if not singles.start(send, queue):
                    with self._sending():  # `close` waits for what is in no batch yet
                        await singles.start_later(send, queue, block=block)
                result = await future
        except BaseException as error:
            if hooked is not None:
                hooked.end(None, error)
            raise
        return result if hooked is None else hooked.stored(result)

    async def _send(
        self,
        message: Message,
        choice: Choice,
        timeout: timedelta | None,
        accumulate: bool | None,
        block: bool,
    ) -> SendResult:
        """What `send` does, without interceptors."""
        with self._sending() as (_, singles):
            seconds = self._seconds(timeout)
            accumulates = self._accumulates(accumulate)
            way = choice.way(message, block=block, is_alone=not accumulates)
            if way is not None:
                return await singles.send_in_order(message, way, seconds)
            if not accumulates:
                return await singles.send_alone(message, choice.queue, seconds, block=block)
            send, future = singles.single(message, choice.queue, seconds)
            await singles.start_later(send, choice.queue, block=block)
            return await future

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout: timedelta | None = None,
    ) -> list[SendResult]:
        """Stores any number of messages of any topics; results in their order.

        They are split into requests of at most 512 messages or 1 MiB, each of one topic, to one
        queue, and stored whole or not at all; `timeout` bounds each request. With `queue`, one
        request follows the other, in order. Messages with a message group, and all with a
        `selector`, keep their order as single sends do, and `timeout` bounds them as a whole.

        Raises like `send`; PartialSend when some messages were stored and others not. When
        something is wrong with a message, nothing is sent, and the error names its index.
        """
        check_messages(messages)
        choice, seconds = Choice(queue, selector), self._seconds(timeout)
        if self._interceptors:
            with HookedBatch(messages, self._interceptors) as hooked:
                return hooked.stored(await self._send_batch(hooked.messages, choice, seconds))
        return await self._send_batch(messages, choice, seconds)

    async def _send_batch(
        self, messages: Sequence[Message], choice: Choice, timeout_s: float
    ) -> list[SendResult]:
        """What `send_batch` does, without interceptors."""
        with self._sending() as (sender, singles):
            batch = BatchSend(
                sender, singles.ordered, messages, choice, timeout_s, budget=self._budget
            )
            return await batch.deliver()

    def send_async(
        self,
        message: Message,
        callback: Callback | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout: timedelta | None = None,
        accumulate: bool | None = None,
    ) -> asyncio.Future[SendResult]:
        """Starts a send; `callback(result, error)` is called on the loop when it ends.

        It cannot wait for room: with too many sends under way it fails with FLOW_CONTROL.
        """
        if PROCESS.is_child:
            PROCESS.check()
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        hooked, way, seconds = None, None, self._seconds(timeout)
        accumulates = self._accumulates(accumulate)
        try:
            check_message(message)
            if self._interceptors:
                message, hooked = begin_send(message, self._interceptors)
            if selector is not None or message.order_key:
                way = Choice(queue, selector).way(message, block=False, is_alone=not accumulates)
        except Exception as error:
            return refused(future, error, callback)
        if self._singles is None:
            future.set_exception(ClientClosed("producer"))
        else:
            arrival = Arrival(message, queue, way, seconds, future, not accumulates)
            self._singles.accept(arrival)
        if hooked is not None:
            future.add_done_callback(partial(report, callback=hooked.end))
        if callback is not None:
            future.add_done_callback(lambda done: report(done, callback))
        return future

    def _accept(self, arrival: Arrival) -> None:
        """Starts a send of another thread, which has taken its room. On the loop."""
        if self._singles is not None:
            self._singles.accept(arrival, has_room=True)
            return
        self._budget.give_back(1, arrival.message.size)
        fail(arrival.future, ClientClosed("producer"))

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        accumulate: bool | None = None,
    ) -> None:
        """Sends once and does not wait for the answer: the message may be lost, unreported.

        Waits only while too many sends are under way. Raises FLOW_CONTROL when there is no room
        within `send_timeout`, and what asking for the route raises.
        """
        check_message(message)
        message, hooked = begin_send(message, self._interceptors)
        try:
            await self._send_oneway(message, Choice(queue, selector), accumulate)
        except BaseException as error:
            if hooked is not None:
                hooked.end(None, error)
            raise
        if hooked is not None:
            hooked.end(None, None)

    async def _send_oneway(self, message: Message, choice: Choice, accumulate: bool | None) -> None:
        """What `send_oneway` does, without interceptors."""
        with self._sending() as (_, singles):
            accumulates = self._accumulates(accumulate)
            way = choice.way(message, is_one_way=True, is_alone=not accumulates)
            if way is not None:
                await singles.post_in_order(message, way, self._timeout_s)
                return
            if accumulates:
                await singles.post(message, choice.queue, self._timeout_s)
                return
            await singles.one_way.post(message, choice.queue, self._timeout_s)

    async def request(self, message: Message, timeout: timedelta | None = None) -> Reply:
        """Sends a request and returns what a consumer replies; within the timeout, after which no
        consumer gets the request any more. The first reply counts.

        Raises MqError like `send`; RequestTimeout without a reply: the request may have been
        carried out; MESSAGE_ILLEGAL for a delayed message; VERSION_NOT_SUPPORTED.
        """
        check_message(message)
        with self._sending():
            requests = self._requests
        if requests is None:
            raise ClientClosed("producer")
        return await requests.request(message, self._seconds(timeout))

    @property
    def dropped_replies(self) -> DroppedReplies:
        """Replies since the start that nobody waited for."""
        return DroppedReplies() if self._requests is None else self._requests.dropped

    async def recall(
        self, topic: str, recall_handle: str, *, timeout: timedelta | None = None
    ) -> str:
        """Recalls a message that waits for its `delay` or `deliver_at`: it is not delivered.
        `recall_handle`: of its SendResult. Returns its message id.

        Raises MqError: ILLEGAL_OPERATION (it was delivered or recalled already), INVALID_PARAMETER
        (no recall handle, or one of another topic), and what `send` raises.
        """
        with self._sending() as (sender, _):
            return await sender.recall(topic, recall_handle, self._seconds(timeout))

    @contextmanager
    def _sending(self) -> Iterator[tuple[Sender, SingleSends]]:
        if self._sender is None or self._singles is None:
            raise ClientClosed("producer")
        self._begin()
        try:
            yield self._sender, self._singles
        finally:
            self._end()

    def _begin(self) -> None:
        if PROCESS.is_child:
            PROCESS.check()
        self._sends += 1
        self._idle.clear()

    def _end(self) -> None:
        self._sends -= 1
        if not self._sends:
            self._idle.set()

    def _accumulates(self, wanted: bool | None) -> bool:
        return self._options.accumulate if wanted is None else wanted

    def _seconds(self, timeout: timedelta | None) -> float:
        """Raises INVALID_PARAMETER: no duration, below 0, or over a day."""
        if timeout is None:
            return self._timeout_s
        return check_duration("timeout", timeout, 0, MAX_TIMEOUT_S)

    def _on_notice(self, address: str, notice: client_pb2.ClientNotice) -> None:
        """What a broker says on the stream that this client holds open."""
        if notice.HasField("reply") and self._requests is not None:
            self._requests.on_reply(notice.reply)

    def _heartbeat(self, instance: ClientInstance) -> client_pb2.HeartbeatRequest:
        """Also while it closes: a send in flight may open the first link to a broker."""
        request = instance.new_heartbeat()
        request.producer_groups.append(self.producer_group)
        request.producer_statistics.CopyFrom(self.statistics().to_proto())
        return request
