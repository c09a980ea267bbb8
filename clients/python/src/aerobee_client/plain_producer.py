"""Send messages: the class for programs without asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import TypeVar, Unpack

from aerobee_client.message import Message, check_message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.hooks import begin_send
from aerobee_client.options.producer import ProducerSettings
from aerobee_client.producer import DEFAULT_GROUP, AsyncProducer
from aerobee_client.runtime.facade import StartedFacade, blocking, on_loop
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.send_result import DroppedReplies, SendResult
from aerobee_client.sending.callbacks import (
    Callback,
    ThreadFuture,
    refused,
    report_on_thread,
)
from aerobee_client.sending.cross_thread_queue import queued_send
from aerobee_client.sending.order.queue_choice import QueueChoice, Selector

C = TypeVar("C", bound=AsyncProducer)


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
    send = blocking(AsyncProducer.send)
    send_batch = blocking(AsyncProducer.send_batch)
    send_oneway = blocking(AsyncProducer.send_oneway)
    recall = blocking(AsyncProducer.recall)
    request = blocking(AsyncProducer.request)

    @property
    def dropped_replies(self) -> DroppedReplies:
        """Counts of replies since the start that the producer discarded."""
        return self._client.dropped_replies

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
        flight, the call waits for room, within the timeout. It fails with FLOW_CONTROL after that,
        at once with `block=False`, and in a callback.

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
            queued = queued_send((message, queue, ordering, seconds, future, not accumulates))
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
