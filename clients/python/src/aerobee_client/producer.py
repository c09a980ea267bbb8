"""Sending messages: the public classes.

A send is settled within `send_timeout`, retries included. While no broker of the topic can be
reached, it keeps trying until then, with pauses; so a producer with a generous timeout rides
through a broker's restart. A retry can make a duplicate: a connection that breaks does not tell
whether the broker had stored the message. Both copies then have the same message id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self

from aerobee.broker.v1 import client_pb2

from aerobee_client.clock import Clock
from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_client.cluster.transport import Transport
from aerobee_client.errors import ClientClosed
from aerobee_client.loop_thread import LoopThread
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.send_result import SendResult
from aerobee_client.sending.sender import Sender, SendOptions
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import check_group

DEFAULT_GROUP = "DEFAULT_PRODUCER"
DEFAULT_TIMEOUT = timedelta(seconds=3)
DEFAULT_RETRIES = 2
MAX_MESSAGE_SIZE = 4 * 1024 * 1024
# One-way sends under way at once; further ones wait.
ONEWAY_WINDOW = 256
MAX_TIMEOUT_S = 86_400
MAX_INT32 = (1 << 31) - 1

Callback = Callable[[SendResult | None, BaseException | None], None]


class AsyncProducer:
    """Sends messages; for asyncio. `async with AsyncProducer(...) as producer:` starts and closes.

    `send_timeout` bounds a whole send (a day at most). `retries`: further attempts after an answer
    that another broker may not give. `latency_fault`: leave slow brokers alone for a while.
    `transport` and `clock` are for tests. Raises INVALID_PARAMETER, which names the bounds.
    """

    def __init__(
        self,
        producer_group: str = DEFAULT_GROUP,
        *,
        namesrv: str | Sequence[str] | None = None,
        send_timeout: timedelta = DEFAULT_TIMEOUT,
        retries: int = DEFAULT_RETRIES,
        max_message_size: int = MAX_MESSAGE_SIZE,
        default_queue_count: int = 4,
        latency_fault: bool = False,
        transport: Transport | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_group(producer_group)
        for name, number, lowest, limit in (
            ("send_timeout", send_timeout.total_seconds(), 0.001, MAX_TIMEOUT_S),
            ("retries", retries, 0, MAX_INT32),
            ("max_message_size", max_message_size, 1, MAX_INT32),
            ("default_queue_count", default_queue_count, 1, MAX_INT32),
        ):
            if not lowest <= number <= limit:
                raise MqError(
                    Code.INVALID_PARAMETER, f"{name} is {number}: give {lowest} to {limit}"
                )
        self.producer_group = producer_group
        self._namesrv = namesrv
        self._transport = transport
        self._clock = clock
        self._options = SendOptions(
            producer_group,
            send_timeout.total_seconds(),
            retries,
            max_message_size,
            default_queue_count,
        )
        self._fault = LatencyFault() if latency_fault else None
        self._instance: ClientInstance | None = None
        self._sender: Sender | None = None
        self._sends = 0
        self._oneways: set[asyncio.Task[None]] = set()
        self._meet_loop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Raises INVALID_PARAMETER when no name server is given. Connects at the first send."""
        if self._instance is not None:
            return
        self._meet_loop()
        self._instance = ClientInstance(
            self._namesrv,
            default_queue_count=self._options.default_queue_count,
            transport=self._transport,
            clock=self._clock,
        )
        self._instance.start(self._heartbeat)
        self._sender = Sender(self._instance, self._options, self._fault)

    async def close(self) -> None:
        """Waits for the sends under way, those that were only just started too; unregisters and
        disconnects, at once when it is cancelled. May be called twice."""
        instance, self._instance, self._sender = self._instance, None, None
        if instance is None:
            return
        async with AsyncExitStack() as last:
            last.push_async_callback(instance.close)
            if self._sends:
                await self._idle.wait()  # each send ends by its own timeout
            await asyncio.gather(*self._oneways)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that `topic` can be written to now. Raises like `send`."""
        with self._sending() as sender:
            return await sender.queues(topic)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout: timedelta | None = None,
    ) -> SendResult:
        """Stores one message; to `queue` when given, and then to no other.

        Raises MqError: what is refused (MESSAGE_ILLEGAL, NO_PERMISSION, TOPIC_NOT_EXIST, …),
        NamesrvUnreachable, BrokerUnreachable, RequestTimeout (it may have been stored).
        """
        with self._sending() as sender:
            return await self._send(sender, message, queue, timeout)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: timedelta | None = None,
    ) -> list[SendResult]:
        """Stores any number of messages of any topics; results in their order.

        Split into requests of at most 512 messages or 1 MiB, each for one queue and stored whole or
        not at all; `timeout` is for each request. With `queue`, one request after the other, in
        order. Raises like `send`; PartialSend when some were stored and others not.
        """
        with self._sending() as sender:
            for message in messages:
                sender.check(message, queue)
            return await sender.send_runs(messages, queue, self._seconds(timeout))

    def send_async(
        self,
        message: Message,
        callback: Callback | None = None,
        *,
        queue: MessageQueue | None = None,
        timeout: timedelta | None = None,
    ) -> asyncio.Task[SendResult]:
        """Starts a send; `callback(result, error)` is called on the loop when it ends."""
        sender = self._sender
        if sender is None:  # the task says so
            task = asyncio.ensure_future(self.send(message, queue=queue, timeout=timeout))
        else:  # from now on it is under way, although its task has not begun
            self._begin()
            task = asyncio.ensure_future(self._send(sender, message, queue, timeout))
            task.add_done_callback(self._end)
        if callback is not None:
            task.add_done_callback(lambda done: _report(done, callback))
        return task

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Sends once and does not wait for the answer: the message may be lost without a word.

        Waits only while 256 one-way sends are under way.
        """
        with self._sending() as sender:
            sender.check(message, queue)
            target = queue or await sender.next_queue(message.topic)
            await self._oneway_room.acquire()
            task = asyncio.create_task(sender.post(message, target))
            self._oneways.add(task)
            task.add_done_callback(self._oneway_done)

    async def recall(
        self, topic: str, recall_handle: str, *, timeout: timedelta | None = None
    ) -> str:
        """Takes back a message that waits for its `deliver_at`; it will not be delivered. Returns
        its message id. `recall_handle`: of its SendResult.

        Raises MqError: ILLEGAL_OPERATION (it was delivered, or recalled before), INVALID_PARAMETER
        (no handle, or one of another topic), and what `send` raises.
        """
        with self._sending() as sender:
            return await sender.recall(topic, recall_handle, self._seconds(timeout))

    # ---- inside ----

    def _meet_loop(self) -> None:
        """These belong to the loop that they are first waited for in; a second start may be in
        another one."""
        self._idle = asyncio.Event()
        self._oneway_room = asyncio.Semaphore(ONEWAY_WINDOW)

    @contextmanager
    def _sending(self) -> Iterator[Sender]:
        if self._sender is None:
            raise ClientClosed("producer")
        self._begin()
        try:
            yield self._sender
        finally:
            self._end()

    def _begin(self) -> None:
        self._sends += 1
        self._idle.clear()

    def _end(self, _: object = None) -> None:
        self._sends -= 1
        if not self._sends:
            self._idle.set()

    async def _send(
        self,
        sender: Sender,
        message: Message,
        queue: MessageQueue | None,
        timeout: timedelta | None,
    ) -> SendResult:
        sender.check(message, queue)
        results = await sender.send_run([message], queue, self._seconds(timeout))
        return results[0]

    def _oneway_done(self, task: asyncio.Task[None]) -> None:
        self._oneways.discard(task)
        self._oneway_room.release()

    def _seconds(self, timeout: timedelta | None) -> float:
        return self._options.timeout_s if timeout is None else timeout.total_seconds()

    def _heartbeat(self) -> client_pb2.HeartbeatRequest:
        assert self._instance is not None, "a link lives as long as the instance"
        request = self._instance.new_heartbeat()
        request.producer_groups.append(self.producer_group)
        return request


def _report(done: asyncio.Task[SendResult] | Future[SendResult], callback: Callback) -> None:
    if done.cancelled():
        callback(None, asyncio.CancelledError("the send was cancelled"))
        return
    error = done.exception()
    callback(done.result() if error is None else None, error)


class Producer:
    """Sends messages; for programs without asyncio. Any thread may use it.

    `with Producer(...) as producer:` starts and closes. Arguments, results and errors are those of
    AsyncProducer.
    """

    def __init__(
        self,
        producer_group: str = DEFAULT_GROUP,
        *,
        namesrv: str | Sequence[str] | None = None,
        send_timeout: timedelta = DEFAULT_TIMEOUT,
        retries: int = DEFAULT_RETRIES,
        max_message_size: int = MAX_MESSAGE_SIZE,
        default_queue_count: int = 4,
        latency_fault: bool = False,
    ) -> None:
        self._producer = AsyncProducer(
            producer_group,
            namesrv=namesrv,
            send_timeout=send_timeout,
            retries=retries,
            max_message_size=max_message_size,
            default_queue_count=default_queue_count,
            latency_fault=latency_fault,
        )
        self._loop = LoopThread("aerobee producer")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def producer_group(self) -> str:
        return self._producer.producer_group

    def start(self) -> None:
        self._loop.start()
        try:
            self._loop.run(self._producer.start())
        except BaseException:
            self._loop.stop()
            raise

    def close(self) -> None:
        if self._loop.is_running():
            try:
                self._loop.run(self._producer.close())
            finally:
                self._loop.stop()

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._loop.run(self._producer.queues(topic))

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout: timedelta | None = None,
    ) -> SendResult:
        return self._loop.run(self._producer.send(message, queue=queue, timeout=timeout))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: timedelta | None = None,
    ) -> list[SendResult]:
        return self._loop.run(self._producer.send_batch(messages, queue=queue, timeout=timeout))

    def send_async(
        self,
        message: Message,
        callback: Callback | None = None,
        *,
        queue: MessageQueue | None = None,
        timeout: timedelta | None = None,
    ) -> Future[SendResult]:
        """Starts a send; `callback(result, error)` is called in the producer's thread."""
        future = self._loop.submit(self._producer.send(message, queue=queue, timeout=timeout))
        if callback is not None:
            future.add_done_callback(lambda done: _report(done, callback))
        return future

    def recall(self, topic: str, recall_handle: str, *, timeout: timedelta | None = None) -> str:
        return self._loop.run(self._producer.recall(topic, recall_handle, timeout=timeout))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        self._loop.run(self._producer.send_oneway(message, queue=queue))
