"""Consuming in a group: the public classes.

The group's queues are divided among its members; each member pulls its own and pushes the messages
to a listener. A message is delivered at least once: again after a failure, a crash, or when a queue
changes hands before its offset was committed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self, Unpack

from aerobee_client.clock import Clock, SystemClock
from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.transport import Transport
from aerobee_client.consumer_options import ConsumerOptions, ConsumerSettings
from aerobee_client.consuming.listener import BatchListener, Consume, Listener
from aerobee_client.consuming.membership import Membership
from aerobee_client.consuming.puller import TopicSubscription
from aerobee_client.errors import ClientClosed
from aerobee_client.loop_thread import LoopThread
from aerobee_client.message_queue import MessageQueue
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import ALL, parse_expression
from aerobee_wire.topics import check_group, check_topic, retry_topic

CLOSE_TIMEOUT = timedelta(seconds=30)


class AsyncPushConsumer:
    """A member of a consumer group; for asyncio.

    `listener`: a function or a coroutine function of one ReceivedMessage; a function runs on one of
    `concurrency` threads. It returns None or ConsumeResult.SUCCESS when it has consumed the
    message. When it raises, or returns ConsumeResult.RECONSUME_LATER, the message is sent back: it
    comes again after the delay that the group's retry policy says, and goes to the dead-letter
    topic once its attempts are used up; the exception's class and text travel with it.
    `batch_listener`, in place of `listener`, gets a list and may return one ConsumeResult for each
    message. Other keyword arguments: ConsumerOptions.

    All members of a group must subscribe to the same topics and expressions. `transport` and
    `clock` are for tests.
    """

    def __init__(
        self,
        consumer_group: str,
        listener: Listener | None = None,
        *,
        batch_listener: BatchListener | None = None,
        namesrv: str | Sequence[str] | None = None,
        transport: Transport | None = None,
        clock: Clock | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        check_group(consumer_group)
        self.consumer_group = consumer_group
        self.options = ConsumerOptions(**settings)
        self._consume = Consume(listener, batch_listener)
        self._namesrv = namesrv
        self._transport = transport
        self._clock = clock or SystemClock()
        self._running: Membership | None = None
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._subscribe(retry_topic(consumer_group), ALL)

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

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that this member owns now, those of the retry topic included."""
        return frozenset() if self._running is None else self._running.assignment.queues()

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        """Consumes the messages of `topic` whose tag is in `expression`, "a || b"; all with "*".

        Before or after start. Raises INVALID_PARAMETER, SUBSCRIPTION_PARSE_FAILED.
        """
        check_topic(topic)
        self._subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Consumes no more of `topic`; what is committed stays."""
        if self._subscriptions.pop(topic, None) is not None and self._running is not None:
            self._running.subscriptions_changed(topic)

    async def start(self) -> None:
        """Joins the group and begins to consume.

        Raises NamesrvUnreachable, and what every broker refuses (SUBSCRIPTION_GROUP_NOT_EXIST, …).
        A topic that does not exist yet is waited for.
        """
        if self._running is not None:
            return
        instance = ClientInstance(self._namesrv, transport=self._transport, clock=self._clock)
        running = Membership(
            self.consumer_group, instance, self._consume, self._subscriptions, self.options
        )
        self._running = running
        try:
            await running.start()
        except BaseException:
            self._running = None
            await running.close(0)
            raise
        if self._running is not running:  # closed meanwhile: what was made since then ends too
            await running.close(0)
            raise ClientClosed("consumer")

    async def close(self, timeout: timedelta = CLOSE_TIMEOUT) -> None:
        """Stops pulling, waits up to `timeout` for the listeners that run, commits the offsets and
        leaves the group; leaves at once when it is cancelled. May be called twice; not by the
        listener, which it would wait for (ILLEGAL_OPERATION)."""
        if self._running is not None and self._running.consumption.runs_in(asyncio.current_task()):
            raise _closed_by_listener("task")
        running, self._running = self._running, None
        if running is not None:
            await running.close(timeout.total_seconds())

    def consumes_on(self, thread: threading.Thread) -> bool:
        """Whether the listener runs on `thread`."""
        return self._running is not None and self._running.consumption.runs_on(thread)

    def _subscribe(self, topic: str, expression: str) -> None:
        tags = frozenset(tag.encode() for tag in parse_expression(expression))
        version = self._clock.now_ms()
        self._subscriptions[topic] = TopicSubscription(topic, expression, tags, version)
        if self._running is not None:
            self._running.subscriptions_changed(topic)


def _closed_by_listener(where: str) -> MqError:
    return MqError(
        Code.ILLEGAL_OPERATION,
        "close() waits for the listener, so the listener cannot call it: call it from another "
        f"{where}",
    )


class PushConsumer:
    """A member of a consumer group; for programs without asyncio. Any thread may use it.

    Arguments and behaviour are those of AsyncPushConsumer.
    """

    def __init__(
        self,
        consumer_group: str,
        listener: Listener | None = None,
        *,
        batch_listener: BatchListener | None = None,
        namesrv: str | Sequence[str] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._consumer = AsyncPushConsumer(
            consumer_group, listener, batch_listener=batch_listener, namesrv=namesrv, **settings
        )
        self._loop = LoopThread("aerobee consumer")

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
    def consumer_group(self) -> str:
        return self._consumer.consumer_group

    @property
    def queues(self) -> frozenset[MessageQueue]:
        return self._consumer.queues

    def subscribe(self, topic: str, expression: str = ALL) -> None:
        self._on_loop(lambda: self._consumer.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        self._on_loop(lambda: self._consumer.unsubscribe(topic))

    def start(self) -> None:
        self._loop.start()
        try:
            self._loop.run(self._consumer.start())
        except BaseException:
            self._loop.stop()
            raise

    def close(self, timeout: timedelta = CLOSE_TIMEOUT) -> None:
        """As AsyncPushConsumer.close. Not from the listener, which it would wait for."""
        if not self._loop.is_running():
            return
        if self._consumer.consumes_on(threading.current_thread()):
            raise _closed_by_listener("thread")
        try:
            self._loop.run(self._consumer.close(timeout))
        finally:
            self._loop.stop()

    def _on_loop(self, function: Callable[[], None]) -> None:
        """The consumer's state belongs to its loop once that runs."""
        if not self._loop.is_running():
            function()
            return

        async def call() -> None:
            function()

        self._loop.run(call())
