"""Consume messages in a group: the public classes.

The message queues of a topic are divided among the members of the group. Each member pulls its own
queues and passes the messages to a listener. A message is delivered at least once. It is delivered
again after a failure, after a crash, or if its queue moves to another member before its offset is
committed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Unpack

from aerobee_client.cluster.client_instance import ClientInstance, Connection
from aerobee_client.cluster.order_warning import FifoWarning
from aerobee_client.consuming.broadcasting import LocalOffsets, PassOver
from aerobee_client.consuming.concurrent_consumption import ConcurrentConsumption
from aerobee_client.consuming.failure_reports import FailureReports
from aerobee_client.consuming.listener import BatchListener, Listener, consume_of
from aerobee_client.consuming.membership import Membership
from aerobee_client.consuming.offsets import OffsetStore, OffsetTable
from aerobee_client.consuming.order.lock_keeper import LockKeeper
from aerobee_client.consuming.order.locked_queues import LockedQueues
from aerobee_client.consuming.order.orderly_consumption import OrderlyConsumption
from aerobee_client.consuming.pulled_queues import statistics_of
from aerobee_client.consuming.puller import TopicSubscription
from aerobee_client.consuming.send_back import ObservedRejections, Rejections, SendBack
from aerobee_client.errors import ClientClosed
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.assignment_callbacks import AssignmentCallbacks
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.bounds import FOREVER_S, check_duration, with_settings
from aerobee_client.options.consumer import ConsumerOptions, ConsumerSettings, MessageModel, Sql
from aerobee_client.producer import AsyncProducer, trace_producer
from aerobee_client.requesting import Replier
from aerobee_client.runtime.clock import Clock, SystemClock
from aerobee_client.runtime.facade import (
    Done,
    StartedFacade,
    blocking,
    on_loop,
    settled,
)
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.runtime.kinds import checked_class
from aerobee_client.trace_topic.message_traces import MessageTraces, producer_group
from aerobee_cluster.transport import Transport
from aerobee_wire.status import MqError, illegal_operation, invalid_parameter
from aerobee_wire.tags import ALL
from aerobee_wire.topics import check_group, check_topic, dead_letter_topic, retry_topic

CLOSE_TIMEOUT = timedelta(seconds=30)

_Membership = Membership[ConcurrentConsumption | OrderlyConsumption]


@checked_class
class AsyncPushConsumer(Replier):
    """A member of a consumer group that passes messages to a listener, for asyncio.

    The listener returns None or ConsumeResult.SUCCESS when it has consumed a message. If it raises
    or returns ConsumeResult.RECONSUME_LATER, the message is sent back to its broker. The broker
    redelivers the message after the delay of the group's retry policy. After the last attempt, the
    broker moves it to the dead-letter topic, with the class and text of the exception.

    The first failure of a message and its move to the dead-letter topic are logged as warnings,
    with the traceback. Failures of one cause share one traceback a minute. The option `on_error`
    notifies the program of every failure.

    All members of a group must subscribe to the same topics and expressions.

    Args:
        consumer_group: The name of the group.
        listener: A function or coroutine function that gets one ReceivedMessage. A plain function
            runs on one of `concurrency` threads.
        batch_listener: Use it instead of `listener` to get a list of messages. It may return one
            ConsumeResult for each message.
        namesrv: The addresses of the name servers, "host:port;host:port" or a sequence. Default:
            NAMESRV_ADDR of the environment.
        transport: Replaces the transport in tests.
        clock: Replaces the clock in tests.
        settings: The options of ConsumerOptions.

    Raises:
        MqError: INVALID_PARAMETER for an invalid group name, or an unknown or invalid option.

    Example:
        async def listener(message):
            print(message.topic, message.body)

        consumer = AsyncPushConsumer("billing", listener)
        await consumer.subscribe("orders", "paid || cancelled")
        async with consumer:
            await asyncio.Event().wait()
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
        super().__init__()
        check_group(consumer_group)
        self.consumer_group = consumer_group
        self.options = with_settings(ConsumerOptions, settings)
        self._clock = clock or SystemClock()
        self._connection = Connection(namesrv, transport, self._clock)
        self._traces: MessageTraces | None = None
        if self.options.enable_trace:
            # The last interceptor: it measures the listener without the others.
            self._traces = MessageTraces(
                consumer_group,
                self._open_trace_producer,
                consume_timeout_s=self.options.consume_timeout.total_seconds(),
            )
            interceptors = (*self.options.interceptors, self._traces)
            self.options = replace(self.options, interceptors=interceptors)
        self._listeners = (listener, batch_listener)
        self._consume = consume_of(*self._listeners, consumer_group, self.options.interceptors)
        self._membership: _Membership | None = None
        self._last = ConsumerStatistics()  # of the membership that was closed
        self._paused: set[str | MessageQueue] = set()  # before the start
        self._subscriptions: dict[str, TopicSubscription] = {}
        if self.options.message_model is MessageModel.CLUSTERING:
            self.subscribe(retry_topic(consumer_group))

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that this member owns now, including those of the retry topic."""
        return frozenset() if self._membership is None else self._membership.assignment.queues()

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """Add an interceptor after the existing interceptors.

        Args:
            interceptor: The interceptor to notify.

        Raises:
            MqError: ILLEGAL_OPERATION after the start.
        """
        if self._membership is not None:
            raise illegal_operation(
                "the consumer has started: add interceptors, or instrument it, before start()"
            )
        interceptors = (*self.options.interceptors, interceptor)
        self.options = replace(self.options, interceptors=interceptors)
        self._consume = consume_of(*self._listeners, self.consumer_group, interceptors)

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> Awaitable[None]:
        """Consume messages of `topic`. Call it before or after the start.

        The call replaces an earlier subscription of the topic. Retries are consumed even if they do
        not match the new expression. If the consumer has started and the expression is Sql, `await`
        the result: a broker must check the expression first. Without the await, the subscription
        does not change.

        Args:
            topic: The topic to consume.
            expression: The tags to consume, such as "a || b"; "*" for all messages; or a condition
                on their properties, such as `Sql("size > 5")`.

        Returns:
            An awaitable, which does nothing unless a broker checks the expression.

        Raises:
            MqError: INVALID_PARAMETER or SUBSCRIPTION_PARSE_FAILED. For Sql before the start,
                `start` raises it.
        """
        PROCESS.check()
        check_topic(topic)
        subscription = TopicSubscription.of(topic, expression, self._clock.now_ms())
        if subscription.is_sql and self._membership is not None:
            return self._subscribe_checked(subscription, self._membership)
        self._subscribe(subscription)
        return Done()

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming `topic`. The committed offsets are kept."""
        if self._subscriptions.pop(topic, None) is not None and self._membership is not None:
            self._membership.subscriptions_changed(topic)

    def pause(self, *targets: str | MessageQueue) -> None:
        """Pause topics or queues until `resume`.

        The messages of paused queues are neither pulled nor passed to a listener. Running listeners
        continue. This member keeps the queues. Queues of a paused topic that the member acquires
        later are paused too. Retries come from the retry topic of the group, which is paused only
        if all topics are.

        Args:
            targets: Topics and queues; without an argument, all topics.

        Raises:
            MqError: INVALID_PARAMETER for a topic without subscription.
        """
        chosen = self._targets(targets)
        if self._membership is None:
            self._paused.update(chosen)
        else:
            self._membership.assignment.pause(chosen)

    def resume(self, *targets: str | MessageQueue) -> None:
        """End the pause of topics or queues.

        Args:
            targets: Queues, and topics with all their queues; without an argument, all topics.

        Raises:
            MqError: INVALID_PARAMETER for a topic without subscription.
        """
        chosen = self._targets(targets)
        if self._membership is None:
            self._paused.difference_update(chosen)
            return
        for process_queue in self._membership.assignment.resume(chosen):
            self._membership.consumption.resume(process_queue)

    def _targets(self, targets: Sequence[str | MessageQueue]) -> Sequence[str | MessageQueue]:
        PROCESS.check()
        for target in targets:
            topic = target if isinstance(target, str) else target.topic
            if topic not in self._subscriptions:
                raise invalid_parameter(
                    f"{self.consumer_group} does not subscribe to {topic}: give one of "
                    f"{', '.join(self._subscriptions)}"
                )
        return targets or list(self._subscriptions)

    def set_concurrency(self, concurrency: int) -> None:
        """Set the maximum number of concurrent listener calls.

        Args:
            concurrency: 1 to 1,000.

        Raises:
            MqError: INVALID_PARAMETER for a number out of bounds.
        """
        PROCESS.check()
        self.options = replace(self.options, concurrency=concurrency)
        if self._membership is not None:
            self._membership.consumption.set_concurrency(concurrency)

    def statistics(self) -> ConsumerStatistics:
        """Return the statistics of this member since its last start; zeros before it.

        After `close` they include the listener calls for which it has waited. Each heartbeat
        reports them to the brokers, and `aerobee group members` shows them.
        """
        membership = self._membership
        return self._last if membership is None else self._statistics_of(membership)

    def _statistics_of(self, membership: _Membership) -> ConsumerStatistics:
        tally, given_up = membership.consumption.tally, membership.consumption.settled_failures
        broadcasts = self.options.message_model is MessageModel.BROADCASTING
        return statistics_of(
            tally,
            membership.pulled,
            sent_back=0 if broadcasts else given_up,
            passed_over=given_up if broadcasts else 0,
        )

    async def start(self) -> None:
        """Join the group and start to consume.

        A topic that does not exist yet is consumed as soon as it exists.

        Raises:
            NamesrvUnreachable: If no name server answers.
            MqError: A refusal that every broker gives (SUBSCRIPTION_GROUP_NOT_EXIST, …).
        """
        PROCESS.check()
        if self._membership is not None:
            return
        instance = self._connection.open(self.options, machine_room=self.options.machine_room)
        self._instance = instance  # kept during close, because a running listener may reply
        self._consume.use_time_of(instance.now_ms_at)
        membership = self._orderly(instance) if self.options.orderly else self._concurrent(instance)
        self._membership = membership
        membership.assignment.pause(self._paused)
        try:
            if self._traces is not None:
                await self._traces.start()
            await membership.start()
        except BaseException:
            self._membership = None
            await self._close(membership, 0)
            raise
        if self._membership is not membership:  # it was closed meanwhile
            await self._close(membership, 0)
            raise ClientClosed("consumer")

    def _concurrent(self, instance: ClientInstance) -> _Membership:
        offsets, rejections = _parts_of(instance, self.consumer_group, self.options)
        return Membership(
            self.consumer_group,
            instance,
            self._subscriptions,
            self.options,
            offsets=offsets,
            consumption=ConcurrentConsumption(
                self._consume,
                offsets,
                rejections,
                instance.clock,
                self.options,
                reports=self._reports(),
            ),
            statistics=self.statistics,
            callbacks=self._callbacks(instance),
        )

    def _orderly(self, instance: ClientInstance) -> _Membership:
        offsets = OffsetStore(instance, self.consumer_group, locked=True)

        def on_lost(queue: MessageQueue) -> None:
            membership.assignment.on_lock_lost(queue)

        async def on_regained(queue: MessageQueue) -> None:
            await membership.assignment.on_lock_regained(queue)

        def on_free() -> None:
            membership.request_rebalance()

        keeper = LockKeeper(instance, self.consumer_group, on_lost=on_lost, on_regained=on_regained)
        consumption = OrderlyConsumption(
            self._consume,
            offsets,
            _sent_back(instance, self.consumer_group, self.options),
            instance.clock,
            self.options,
            reports=self._reports(),
            lock_of=keeper.lock_of,
        )
        membership: _Membership = Membership(
            self.consumer_group,
            instance,
            self._subscriptions,
            self.options,
            offsets=offsets,
            consumption=consumption,
            on_failure=keeper.on_pull_failed,
            statistics=self.statistics,
            locked_queues=LockedQueues(keeper, consumption, offsets, on_free=on_free),
            callbacks=self._callbacks(instance),
        )
        return membership

    def _reports(self) -> FailureReports:
        grave = f"in {dead_letter_topic(self.consumer_group)}"
        if self.options.message_model is MessageModel.BROADCASTING:
            grave = "skipped"
        return FailureReports(self._consume.name, grave, self.options.on_error)

    def _callbacks(self, instance: ClientInstance) -> AssignmentCallbacks:
        options = self.options
        on_assigned = [options.on_assigned] if options.on_assigned else []
        if not options.orderly:
            on_assigned.append(FifoWarning(instance, self.consumer_group))
        return AssignmentCallbacks(on_assigned, [options.on_revoked] if options.on_revoked else [])

    async def commit(self, message: ReceivedMessage | None = None) -> None:
        """Commit the consumed messages. Requires `orderly=True, auto_commit=False`.

        Args:
            message: Commit only the queue of this message (with `order_by="message_group"`, its
                message group), up to and including it. The listener may commit the message that it
                is processing. With None, commit all queues.

        Raises:
            MqError: ILLEGAL_OPERATION for another kind of consumer. QUEUE_LOCK_NOT_HELD if the
                queue of `message` has moved to another member, which gets the uncommitted messages
                again.
        """
        await self._in_order().commit(message)

    async def rollback(self, message: ReceivedMessage | None = None) -> None:
        """Deliver uncommitted messages again after the suspend time.

        Requires `orderly=True, auto_commit=False`. A rollback does not count as an attempt. If the
        listener calls this method, the result of that listener call is ignored.

        Args:
            message: Roll back only the queue of this message (with `order_by="message_group"`, its
                message group). With None, roll back all queues.

        Raises:
            MqError: See `commit`.
        """
        self._in_order().roll_back(message)

    def _in_order(self) -> OrderlyConsumption:
        PROCESS.check()
        if self._membership is None:
            raise ClientClosed("consumer")
        consumption = self._membership.consumption
        if isinstance(consumption, ConcurrentConsumption):
            raise illegal_operation(
                "a concurrent consumer commits by itself: give it orderly=True, auto_commit=False"
            )
        return consumption

    async def close(self, timeout: timedelta = CLOSE_TIMEOUT) -> None:
        """Stop pulling, wait for running listeners, commit the offsets and leave the group.

        May be called more than once. If this call is cancelled, it stops waiting for the listeners.

        Args:
            timeout: The maximum time to wait for running listeners, 0 or more.

        Raises:
            MqError: INVALID_PARAMETER for an invalid timeout; then the consumer stays open.
                ILLEGAL_OPERATION if the listener calls this method, because the call would wait for
                itself.
        """
        timeout_s = check_duration("timeout", timeout, 0, FOREVER_S)
        if PROCESS.is_child:
            return  # the membership belongs to the parent process
        if self._membership is not None and self._membership.consumption.runs_in(
            asyncio.current_task()
        ):
            raise _closed_by_listener("task")
        membership, self._membership = self._membership, None
        if membership is not None:
            self._last = self._statistics_of(membership)
            try:
                await self._close(membership, timeout_s)
            finally:
                self._last = self._statistics_of(membership)
                self._instance = None

    async def _close(self, membership: _Membership, timeout_s: float) -> None:
        try:
            await membership.close(timeout_s)
        finally:
            if self._traces is not None:
                await self._traces.close()

    def _open_trace_producer(self) -> AsyncProducer:
        group = producer_group(self.consumer_group, "CONSUME")
        return trace_producer(group, self._connection, self.options)

    def consumes_on(self, thread: threading.Thread) -> bool:
        """Return whether the listener runs on `thread`."""
        return self._membership is not None and self._membership.consumption.runs_on(thread)

    async def _subscribe_checked(
        self, subscription: TopicSubscription, membership: _Membership
    ) -> None:
        await membership.check(subscription)
        self._subscribe(subscription)

    def _subscribe(self, subscription: TopicSubscription) -> None:
        self._subscriptions[subscription.topic] = subscription
        if self._membership is not None:
            self._membership.subscriptions_changed(subscription.topic)


def _parts_of(
    instance: ClientInstance, consumer_group: str, options: ConsumerOptions
) -> tuple[OffsetTable, Rejections]:
    """Return the offset table and the handler of rejected messages for the message model."""
    if options.message_model is MessageModel.CLUSTERING:
        return OffsetStore(instance, consumer_group), _sent_back(instance, consumer_group, options)
    file = None
    if options.offset_file is not None:
        # The lock of the file works on Unix only, so this module is imported only if a file is
        # used.
        from aerobee_client.consuming.offset_file import OffsetFile

        file = OffsetFile(options.offset_file)
    return LocalOffsets(file), PassOver(options.broadcast_attempts)


def _sent_back(
    instance: ClientInstance, consumer_group: str, options: ConsumerOptions
) -> Rejections:
    """Return a handler that sends rejected messages back and notifies interceptors."""
    rejections: Rejections = SendBack(instance, consumer_group, options.max_reconsume_times)
    if options.interceptors:
        rejections = ObservedRejections(rejections, consumer_group, options.interceptors)
    return rejections


def _closed_by_listener(where: str) -> MqError:
    return illegal_operation(
        "close() waits for the listener, so the listener cannot call it: call it from another "
        f"{where}"
    )


@checked_class
class PushConsumer(StartedFacade[AsyncPushConsumer]):
    """A member of a consumer group that passes messages to a listener. Any thread may use it.

    This class is for programs without asyncio. Arguments and behaviour are those of
    AsyncPushConsumer.

    Example:
        consumer = PushConsumer("billing", lambda message: print(message.body))
        consumer.subscribe("orders")
        with consumer:
            time.sleep(60)
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
        client = AsyncPushConsumer(
            consumer_group, listener, batch_listener=batch_listener, namesrv=namesrv, **settings
        )
        super().__init__(client, "aerobee consumer")

    @property
    def consumer_group(self) -> str:
        return self._client.consumer_group

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that this member owns now, including those of the retry topic."""
        return self._client.queues

    add_interceptor = on_loop(AsyncPushConsumer.add_interceptor)
    reply = blocking(AsyncPushConsumer.reply)
    statistics = on_loop(AsyncPushConsumer.statistics)
    pause = on_loop(AsyncPushConsumer.pause)
    resume = on_loop(AsyncPushConsumer.resume)
    set_concurrency = on_loop(AsyncPushConsumer.set_concurrency)
    subscribe = settled(AsyncPushConsumer.subscribe)
    unsubscribe = on_loop(AsyncPushConsumer.unsubscribe)
    commit = blocking(AsyncPushConsumer.commit)
    rollback = blocking(AsyncPushConsumer.rollback)

    def close(self, timeout: timedelta = CLOSE_TIMEOUT) -> None:
        """Stop pulling, wait for running listeners, commit the offsets and leave the group.

        Args:
            timeout: The maximum time to wait for running listeners, 0 or more.

        Raises:
            MqError: See AsyncPushConsumer.close.
        """
        check_duration("timeout", timeout, 0, FOREVER_S)
        if self._loop.is_running() and self._client.consumes_on(threading.current_thread()):
            raise _closed_by_listener("thread")
        self._close(lambda: self._client.close(timeout))
