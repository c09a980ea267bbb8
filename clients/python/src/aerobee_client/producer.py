"""Send messages: the class for asyncio, and the one for other programs.

With `accumulate`, single sends that arrive while a request is in flight share the next request; no
timer delays them. Each send has its own result, deadline and cancellation. When 65,536 sends or 32
MiB are in flight, further sends wait.

A send succeeds or fails within `send_timeout`, including retries. While no broker of the topic is
reachable, the producer retries with pauses until the timeout. With a long timeout, sends therefore
survive the restart of a broker. A retry can store a duplicate, because after a broken connection
the client cannot know whether the broker had stored the message. Both copies have the same message
id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import TypeVar, Unpack

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.client_instance import ClientInstance, Connection, Secured
from aerobee_client.cluster.latency_detector import LatencyDetector
from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_client.errors import ClientClosed
from aerobee_client.message import Message, check_message, check_messages
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.hooks import HookedBatch, begin_send, begin_single_send, notify
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.observing.statistics import ProducerStatistics, Tally
from aerobee_client.options.bounds import check_duration, with_settings
from aerobee_client.options.producer import MAX_TIMEOUT_S, ProducerOptions, ProducerSettings
from aerobee_client.requesting import Requests
from aerobee_client.runtime.clock import Clock
from aerobee_client.runtime.facade import StartedClient, StartedFacade, blocking, on_loop
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.runtime.kinds import (
    check_arguments,
    check_kind,
    checked,
    checked_class,
    checks_itself,
)
from aerobee_client.send_result import DroppedReplies, Reply, SendResult
from aerobee_client.sending.accumulator import fail
from aerobee_client.sending.batch import BatchSend
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.callbacks import (
    Callback,
    ThreadFuture,
    refused,
    report,
    report_on_thread,
)
from aerobee_client.sending.cross_thread_queue import CrossThreadQueue, QueuedSend, make_queued_send
from aerobee_client.sending.order.queue_choice import QueueChoice, Selector
from aerobee_client.sending.sender import Sender
from aerobee_client.sending.single_sends import SingleSends
from aerobee_client.trace_topic.message_traces import MessageTraces, producer_group
from aerobee_cluster.transport import Transport
from aerobee_wire.topics import check_group

DEFAULT_GROUP = "DEFAULT_PRODUCER"
TRACE_TIMEOUT = timedelta(seconds=5)  # of RocketMQ's sends of traces


@checked_class
class AsyncProducer(StartedClient):
    """Sends messages, for asyncio. `async with AsyncProducer(...)` starts and closes it.

    Args:
        producer_group: The name of the producer group.
        namesrv: The addresses of the name servers, "host:port;host:port" or a sequence. Default:
            NAMESRV_ADDR of the environment.
        transport: Replaces the transport in tests.
        clock: Replaces the clock in tests.
        settings: The options of ProducerOptions, such as `send_timeout`, `retries`, `compression`,
            `accumulate` and `max_pending_messages`.

    Raises:
        MqError: INVALID_PARAMETER for an invalid group name, or an unknown or invalid option.

    Example:
        async with AsyncProducer(namesrv="127.0.0.1:9876") as producer:
            result = await producer.send(Message("orders", b"42 apples"))
    """

    # Whether the producer receives notices of every broker from its start on.
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
        self._connection = Connection(namesrv, transport, clock)
        self._interceptors = tuple(self._options.interceptors)
        self._traces: MessageTraces | None = None
        if self._options.enable_trace:
            # The last interceptor: it measures the send without the others.
            self._traces = MessageTraces(self.producer_group, self._open_trace_producer)
            self._interceptors = (*self._interceptors, self._traces)
        self._fault: LatencyFault | None = None
        if self._options.latency_fault:
            self._fault = LatencyFault(self._options.latency_table_ms)
        self._detector: LatencyDetector | None = None
        self._instance: ClientInstance | None = None
        self._sender: Sender | None = None
        self._tally: Tally | None = None  # of the last sender
        self._singles: SingleSends | None = None
        self._requests: Requests | None = None
        self._budget = Budget(self._options.max_pending_messages, self._options.max_pending_bytes)
        self._thread_queue = CrossThreadQueue(self._budget, self._accept)
        self._sends = 0
        self._idle = asyncio.Event()

    async def start(self) -> None:
        """Start the producer. Its first send connects to a broker.

        Raises:
            MqError: INVALID_PARAMETER if no name server is given.
        """
        PROCESS.check()
        if self._instance is not None:
            return
        self._idle = asyncio.Event()  # of this event loop: another start may use another one
        self._instance = self._connection.open(
            self._options, default_queue_count=self._options.default_queue_count
        )
        self._instance.start(
            partial(self._heartbeat, self._instance),
            self._on_notice,
            watches=self._whole_cluster,
            whole_cluster=self._whole_cluster,
        )
        if self._traces is not None:
            await self._traces.start()
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
        self._tally = self._sender.tally
        self._singles = SingleSends(
            self._sender, self._budget, self._instance.clock, self._fault, self._thread_queue.empty
        )
        self._requests = Requests(
            self._instance,
            lambda message, timeout: self.send(message, timeout=timeout),
            self._sender.check_whole,
        )

    async def close(self) -> None:
        """Wait for the sends in flight, unregister and disconnect. May be called twice.

        If this call is cancelled, it stops waiting for the sends.
        """
        if PROCESS.is_child:
            return  # the sends in flight belong to the parent process
        instance, self._instance, self._sender = self._instance, None, None
        singles, self._singles = self._singles, None
        if instance is None or singles is None:
            return
        if self._requests is not None:
            self._requests.close()
        async with AsyncExitStack() as finally_:
            finally_.push_async_callback(instance.close)
            if self._traces is not None:
                finally_.push_async_callback(self._traces.close)
            finally_.push_async_callback(singles.abort)
            if self._detector is not None:
                finally_.push_async_callback(self._detector.close)
            if self._sends:
                await self._idle.wait()  # each send has its own timeout
            await singles.drain()

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """Add an interceptor behind the existing ones. It is notified of sends from now on."""
        self._interceptors = (*self._interceptors, interceptor)

    def _open_trace_producer(self) -> AsyncProducer:
        group = producer_group(self.producer_group, "PRODUCE")
        return trace_producer(group, self._connection, self._options)

    def _requested(
        self, topic: str, message_count: int, elapsed_s: float, error: BaseException | None
    ) -> None:
        """Notify the interceptors of the end of a request that sent messages."""
        if self._interceptors:
            event = (topic, message_count, elapsed_s, error)
            notify(self._interceptors, "after_send_request", *event)

    def statistics(self) -> ProducerStatistics:
        """Return the statistics of this producer since its last start; zeros before it.

        After `close` they include the sends for which it has waited. Each heartbeat reports them to
        the brokers, and `aerobee client list --json` shows them.
        """
        if self._tally is None:
            return ProducerStatistics()
        return ProducerStatistics.of(self._tally, *self._budget.taken())

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of `topic` that accept messages now.

        Raises:
            MqError: See `send`.
        """
        with self._sending() as (sender, _):
            return await sender.queues(topic)

    async def check(self, message: Message) -> None:
        """Check whether `message` can be sent, without sending it.

        Raises:
            MqError: The error with which a send would refuse the message at once: the topic does
                not exist or does not accept messages, or the body or the properties are too large.
        """
        check_message(message)
        with self._sending() as (sender, _):
            sender.check_whole(message)
            await sender.queues(message.topic)

    @checks_itself
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
        """Store one message.

        Messages of one message group keep the order of the calls. So do messages that selectors put
        into one queue. Only one request with such messages is in flight to a queue at a time. If a
        message fails, later messages of the same order fail too.

        Args:
            message: The message to send.
            queue: The queue that stores the message. No other queue is tried.
            selector: A function that chooses the queue. No other queue is tried.
            timeout: The time limit, including retries. Default: the producer's `send_timeout`.
            accumulate: Overrides the producer's `accumulate`.
            block: Whether to wait, within the timeout, while too many sends are in flight.

        Returns:
            The message id and the position of the stored message.

        Raises:
            MqError: A refusal (MESSAGE_ILLEGAL, NO_PERMISSION, TOPIC_NOT_EXIST, …), or FLOW_CONTROL
                if there is no room; then nothing was sent. An error of the selector is raised
                unchanged.
            NamesrvUnreachable: If no name server answers.
            BrokerUnreachable: If no broker of the topic can be reached.
            RequestTimeout: If no answer arrives in time. The message may have been stored.
        """
        check_message(message)
        is_usual = queue is None and selector is None and timeout is None and block is True
        if not is_usual or not (accumulate is None or accumulate.__class__ is bool):
            check_arguments(
                AsyncProducer.send,
                queue=queue,
                selector=selector,
                timeout=timeout,
                accumulate=accumulate,
                block=block,
            )
        added, hooked, singles = None, None, self._singles
        if self._interceptors:
            message, added, hooked = begin_single_send(message, self._interceptors)
        try:
            ordered = selector is not None or message.order_key
            replaces = added is not None and added.name in message.properties
            if singles is None or ordered or replaces or not self._accumulates(accumulate):
                if added is not None:
                    message = added.copied_to(message)
                choice = QueueChoice(queue, selector)
                result = await self._send(message, choice, timeout, accumulate, block)
            else:
                if PROCESS.is_child:
                    PROCESS.check()
                text = "" if added is None else added.text
                send, future = singles.single(message, queue, self._seconds(timeout), text)
                if not singles.start(send, queue):
                    # `close` also waits for sends that are not in a batch yet
                    with self._sending():
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
        choice: QueueChoice,
        timeout: timedelta | None,
        accumulate: bool | None,
        block: bool,
    ) -> SendResult:
        """Send a message, without interceptors."""
        with self._sending() as (_, singles):
            seconds = self._seconds(timeout)
            accumulates = self._accumulates(accumulate)
            ordering = choice.ordering(message, block=block, is_alone=not accumulates)
            if ordering is not None:
                return await singles.send_in_order(message, ordering, seconds)
            if not accumulates:
                return await singles.send_alone(message, choice.queue, seconds, block=block)
            send, future = singles.single(message, choice.queue, seconds)
            await singles.start_later(send, choice.queue, block=block)
            return await future

    @checks_itself
    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout: timedelta | None = None,
    ) -> list[SendResult]:
        """Store any number of messages of any topics.

        The messages are split into requests of at most 512 messages or 1 MiB. Each request is for
        one topic and one queue, and is stored completely or not at all. With `queue`, the requests
        are sent in order, one after the other. Messages with a message group, and all messages with
        a `selector`, keep their order like single sends.

        Args:
            messages: The messages to send.
            queue: The queue that stores the messages.
            selector: A function that chooses the queue of each message.
            timeout: The time limit of each request. Messages that keep an order share one time
                limit.

        Returns:
            The results, in the order of the messages.

        Raises:
            PartialSend: If some messages were stored and others were not.
            MqError: See `send`. If a message is invalid, nothing is sent, and the error names its
                index.
        """
        check_messages(messages)
        check_arguments(AsyncProducer.send_batch, queue=queue, selector=selector, timeout=timeout)
        choice, seconds = QueueChoice(queue, selector), self._seconds(timeout)
        if self._interceptors:
            with HookedBatch(messages, self._interceptors) as hooked:
                return hooked.stored(await self._send_batch(hooked.messages, choice, seconds))
        return await self._send_batch(messages, choice, seconds)

    async def _send_batch(
        self, messages: Sequence[Message], choice: QueueChoice, timeout_s: float
    ) -> list[SendResult]:
        """Send a batch, without interceptors."""
        with self._sending() as (sender, singles):
            batch = BatchSend(
                sender, singles.ordered, messages, choice, timeout_s, budget=self._budget
            )
            return await batch.deliver()

    @checks_itself
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
        """Start a send without waiting for it.

        If too many sends are in flight, the future fails with the code FLOW_CONTROL at once.

        Args:
            message: The message to send.
            callback: A function that the event loop calls with `(result, error)` when the send
                ends.
            queue: See `send`.
            selector: See `send`.
            timeout: See `send`.
            accumulate: See `send`.

        Returns:
            A future with the result or the error.
        """
        if PROCESS.is_child:
            PROCESS.check()
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        _check_uncommon(queue, selector, accumulate, callback)
        hooked, ordering, seconds = None, None, self._seconds(timeout)
        accumulates = self._accumulates(accumulate)
        try:
            check_message(message)
            if self._interceptors:
                message, hooked = begin_send(message, self._interceptors)
            if selector is not None or message.order_key:
                ordering = QueueChoice(queue, selector).ordering(
                    message, block=False, is_alone=not accumulates
                )
        except Exception as error:
            return refused(future, error, callback)
        if self._singles is None:
            future.set_exception(ClientClosed("producer"))
        else:
            queued = QueuedSend(message, queue, ordering, seconds, future, not accumulates)
            self._singles.accept(queued)
        if hooked is not None:
            future.add_done_callback(partial(report, callback=hooked.end))
        if callback is not None:
            future.add_done_callback(lambda done: report(done, callback))
        return future

    def _accept(self, queued: QueuedSend) -> None:
        """Start a send of another thread that has already reserved its budget. Runs on the loop."""
        if self._singles is not None:
            self._singles.accept(queued, has_room=True)
            return
        self._budget.give_back(1, queued.message.size)
        fail(queued.future, ClientClosed("producer"))

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        accumulate: bool | None = None,
    ) -> None:
        """Send once without waiting for the answer: the message may be lost without an error.

        The call waits only while too many sends are in flight.

        Args:
            message: The message to send.
            queue: See `send`.
            selector: See `send`.
            accumulate: See `send`.

        Raises:
            MqError: FLOW_CONTROL if too many sends are in flight until the end of `send_timeout`,
                and errors of the route query.
        """
        check_message(message)
        message, hooked = begin_send(message, self._interceptors)
        try:
            await self._send_oneway(message, QueueChoice(queue, selector), accumulate)
        except BaseException as error:
            if hooked is not None:
                hooked.end(None, error)
            raise
        if hooked is not None:
            hooked.end(None, None)

    async def _send_oneway(
        self, message: Message, choice: QueueChoice, accumulate: bool | None
    ) -> None:
        """Send a message one-way, without interceptors."""
        with self._sending() as (_, singles):
            accumulates = self._accumulates(accumulate)
            ordering = choice.ordering(message, is_one_way=True, is_alone=not accumulates)
            if ordering is not None:
                await singles.post_in_order(message, ordering, self._timeout_s)
                return
            if accumulates:
                await singles.post(message, choice.queue, self._timeout_s)
                return
            await singles.one_way.post(message, choice.queue, self._timeout_s)

    async def request(self, message: Message, timeout: timedelta | None = None) -> Reply:
        """Send a request and return the first reply of a consumer.

        After the timeout, no consumer gets the request.

        Args:
            message: The request. It must not be delayed.
            timeout: The time limit for the reply. Default: the producer's `send_timeout`.

        Returns:
            The body and the properties of the reply.

        Raises:
            RequestTimeout: If no reply arrives in time. The request may have been executed.
            MqError: MESSAGE_ILLEGAL for a delayed message, VERSION_NOT_SUPPORTED, and the errors of
                `send`.
        """
        check_message(message)
        with self._sending():
            requests = self._requests
        if requests is None:
            raise ClientClosed("producer")
        return await requests.request(message, self._seconds(timeout))

    @property
    def dropped_replies(self) -> DroppedReplies:
        """The number of replies that the producer has discarded since its start, by reason."""
        return DroppedReplies() if self._requests is None else self._requests.dropped

    async def recall(
        self, topic: str, recall_handle: str, *, timeout: timedelta | None = None
    ) -> str:
        """Recall a message that waits for its `delay` or `deliver_at`, so that it is not delivered.

        Args:
            topic: The topic of the message.
            recall_handle: The `recall_handle` of its SendResult.
            timeout: The time limit. Default: the producer's `send_timeout`.

        Returns:
            The message id of the recalled message.

        Raises:
            MqError: ILLEGAL_OPERATION if the message was delivered or recalled already,
                INVALID_PARAMETER for a handle that is invalid or of another topic, and the errors
                of `send`.
        """
        with self._sending() as (sender, _):
            message_id = await sender.recall(topic, recall_handle, self._seconds(timeout))
        if self._traces is not None:
            self._traces.recalled(topic, message_id)
        return message_id

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
        """Return the timeout in seconds.

        Raises MqError with the code INVALID_PARAMETER unless it is 0 to 1 day.
        """
        if timeout is None:
            return self._timeout_s
        return check_duration("timeout", timeout, 0, MAX_TIMEOUT_S)

    def _on_notice(self, address: str, notice: client_pb2.ClientNotice) -> None:
        """Handle a notice that a broker sends on the stream between it and this client."""
        if notice.HasField("reply") and self._requests is not None:
            self._requests.on_reply(notice.reply)

    def _heartbeat(self, instance: ClientInstance) -> client_pb2.HeartbeatRequest:
        """Return a heartbeat. It is also needed during close, if a send then opens a link."""
        request = instance.new_heartbeat()
        request.producer_groups.append(self.producer_group)
        request.producer_statistics.CopyFrom(self.statistics().to_proto())
        return request


def trace_producer(group: str, connection: Connection, options: Secured) -> AsyncProducer:
    """Return the producer that sends the traces of another client. It is not started."""
    return AsyncProducer(
        group,
        namesrv=connection.namesrv,
        transport=connection.transport,
        clock=connection.clock,
        tls=options.tls,
        credentials=options.credentials,
        send_timeout=TRACE_TIMEOUT,
    )


def _check_uncommon(
    queue: MessageQueue | None,
    selector: Selector | None,
    accumulate: bool | None,
    callback: Callback | None,
) -> None:
    """Check the arguments of `send_async` that most calls do not give.

    Raises MqError with the code INVALID_PARAMETER.
    """
    if queue is not None or selector is not None or accumulate is not None or callback is not None:
        check_arguments(
            AsyncProducer.send_async,
            queue=queue,
            selector=selector,
            accumulate=accumulate,
            callback=callback,
        )


C = TypeVar("C", bound=AsyncProducer)


@checked_class
class ProducerFacade(StartedFacade[C]):
    """Base of the plain classes of producers."""

    def __init__(self, client: C) -> None:
        super().__init__(client, "aerobee producer")

    @property
    def producer_group(self) -> str:
        return self._client.producer_group

    add_interceptor = on_loop(AsyncProducer.add_interceptor)
    queues = blocking(AsyncProducer.queues)
    statistics = on_loop(AsyncProducer.statistics)
    check = blocking(AsyncProducer.check)
    send = checked(blocking(AsyncProducer.send))
    send_batch = blocking(AsyncProducer.send_batch)
    send_oneway = blocking(AsyncProducer.send_oneway)
    recall = blocking(AsyncProducer.recall)
    request = blocking(AsyncProducer.request)

    @property
    def dropped_replies(self) -> DroppedReplies:
        """The number of replies that the producer has discarded since its start, by reason."""
        return self._client.dropped_replies

    @checks_itself
    def send_async(
        self,
        message: Message,
        callback: Callback | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout: timedelta | None = None,
        accumulate: bool | None = None,
        block: bool = True,
    ) -> Future[SendResult]:
        """Start a send without waiting for it.

        The callback and the selector run in the producer's thread. While too many sends are in
        flight, the call waits up to the timeout, and then fails with the code FLOW_CONTROL. With
        `block=False` or in a callback, the call fails at once instead.

        Args:
            message: The message to send.
            callback: A function that is called with `(result, error)` when the send ends.
            queue: See `send`.
            selector: See `send`.
            timeout: See `send`.
            accumulate: See `send`.
            block: See `send`.

        Returns:
            A future with the result or the error.
        """
        if PROCESS.is_child:  # before any lock is taken
            PROCESS.check()
        _check_uncommon(queue, selector, accumulate, callback)
        if block is not True:
            check_kind("block", block, bool)
        client, ordering, hooked = self._client, None, None
        accumulates = client._accumulates(accumulate)
        try:
            check_message(message)
            if client._interceptors:  # here, in the context of the caller
                message, hooked = begin_send(message, client._interceptors)
            if selector is not None or message.order_key:
                ordering = QueueChoice(queue, selector).ordering(message, is_alone=not accumulates)
        except Exception as error:
            return refused(ThreadFuture(), error, callback)
        future = ThreadFuture()
        try:
            seconds = client._timeout_s if timeout is None else client._seconds(timeout)
            queued = make_queued_send((message, queue, ordering, seconds, future, not accumulates))
            if not client._thread_queue.put(queued, self._loop.call):
                block = block and not self._loop.is_own_thread()
                client._thread_queue.put_later(queued, self._loop.call, block=block)
        except BaseException as error:
            if hooked is not None:
                hooked.end(None, error)
            raise
        if hooked is not None:
            future.add_done_callback(partial(report_on_thread, callback=hooked.end))
        if callback is not None:
            future.add_done_callback(lambda done: report_on_thread(done, callback))
        return future

    def close(self) -> None:
        """Wait for the sends in flight, unregister and disconnect. May be called twice.

        Raises:
            MqError: ILLEGAL_OPERATION in a callback, which would wait for itself.
        """
        super().close()
        self._client._thread_queue.empty()


class Producer(ProducerFacade[AsyncProducer]):
    """Sends messages, for programs without asyncio. Any thread may use it.

    Arguments, results and errors are those of AsyncProducer.

    Example:
        with Producer(namesrv="127.0.0.1:9876") as producer:
            result = producer.send(Message("orders", b"42 apples"))
    """

    def __init__(
        self,
        producer_group: str = DEFAULT_GROUP,
        *,
        namesrv: str | Sequence[str] | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        super().__init__(AsyncProducer(producer_group, namesrv=namesrv, **settings))
