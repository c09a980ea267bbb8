"""Consuming in a group: the public classes.

The message queues of a topic are divided among the members of the group; each member pulls its own
queues and passes the messages to a listener. A message is delivered at least once: again after a
failure, after a crash, or when its queue goes to another member before its offset was committed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Unpack

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.fifo_warning import FifoWarning
from aerobee_client.cluster.transport import Transport
from aerobee_client.consuming.broadcast.local_offsets import LocalOffsets
from aerobee_client.consuming.broadcast.pass_over import PassOver
from aerobee_client.consuming.concurrent_consumption import ConcurrentConsumption
from aerobee_client.consuming.listener import BatchListener, Listener, consume_of
from aerobee_client.consuming.membership import Membership
from aerobee_client.consuming.offset_store import OffsetStore
from aerobee_client.consuming.offset_table import OffsetTable
from aerobee_client.consuming.order.lock_keeper import LockKeeper
from aerobee_client.consuming.order.ordered_queues import OrderedQueues
from aerobee_client.consuming.order.orderly_consumption import OrderlyConsumption
from aerobee_client.consuming.pulled_queues import statistics_of
from aerobee_client.consuming.puller import TopicSubscription
from aerobee_client.consuming.send_back import Rejections, SendBack, ToldRejections
from aerobee_client.errors import ClientClosed
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.assignment_callbacks import AssignmentCallbacks
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.bounds import FOREVER_S, check_duration
from aerobee_client.options.consumer import ConsumerOptions, ConsumerSettings, MessageModel
from aerobee_client.options.names import with_settings
from aerobee_client.options.subscription import Sql
from aerobee_client.requesting.replies import Replier
from aerobee_client.runtime.clock import Clock, SystemClock
from aerobee_client.runtime.facade import (
    Done,
    StartedFacade,
    blocking,
    on_loop,
    settled,
)
from aerobee_client.runtime.fork import PROCESS
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import ALL
from aerobee_wire.topics import check_group, check_topic, retry_topic

CLOSE_TIMEOUT = timedelta(seconds=30)

_Membership = Membership[ConcurrentConsumption | OrderlyConsumption]


class AsyncPushConsumer(Replier):
    """A member of a consumer group; for asyncio.

    `listener`: a function or a coroutine function of one ReceivedMessage; a function runs on one of
    `concurrency` threads. It returns None or ConsumeResult.SUCCESS when it has consumed the
    message. When it raises, or returns ConsumeResult.RECONSUME_LATER, the message is sent back: it
    is redelivered after the delay of the group's retry policy, and goes to the dead-letter topic
    once its attempts are used up, with the class and text of the exception.
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
        super().__init__()
        check_group(consumer_group)
        self.consumer_group = consumer_group
        self.options = with_settings(ConsumerOptions, settings)
        self._listeners = (listener, batch_listener)
        self._consume = consume_of(*self._listeners, consumer_group, self.options.interceptors)
        self._namesrv = namesrv
        self._transport = transport
        self._clock = clock or SystemClock()
        self._membership: _Membership | None = None
        self._paused: set[str | MessageQueue] = set()  # before the start
        self._subscriptions: dict[str, TopicSubscription] = {}
        if self.options.message_model is MessageModel.CLUSTERING:
            self.subscribe(retry_topic(consumer_group))

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that this member owns now, those of the retry topic included."""
        return frozenset() if self._membership is None else self._membership.assignment.queues()

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """It is told after those that are there. Raises ILLEGAL_OPERATION after the start."""
        if self._membership is not None:
            raise MqError(
                Code.ILLEGAL_OPERATION,
                "the consumer has started: add interceptors, or instrument it, before start()",
            )
        interceptors = (*self.options.interceptors, interceptor)
        self.options = replace(self.options, interceptors=interceptors)
        self._consume = consume_of(*self._listeners, self.consumer_group, interceptors)

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> Awaitable[None]:
        """Consumes the messages of `topic` whose tag is in `expression`, "a || b"; all with "*"; or
        those that meet a condition over their properties, `Sql("size > 5")`. Retries of a message
        pass whatever the expression is now.

        Before or after start; the subscription before is replaced. Once started, `await` it for
        Sql: a broker is asked first, and without the await nothing changes.
        Raises INVALID_PARAMETER, SUBSCRIPTION_PARSE_FAILED; for Sql before the start, `start` does.
        """
        PROCESS.check()
        check_topic(topic)
        subscription = TopicSubscription.of(topic, expression, self._clock.now_ms())
        if subscription.is_sql and self._membership is not None:
            return self._subscribe_checked(subscription, self._membership)
        self._subscribe(subscription)
        return Done()

    def unsubscribe(self, topic: str) -> None:
        """Stops consuming `topic`; the committed offsets stay."""
        if self._subscriptions.pop(topic, None) is not None and self._membership is not None:
            self._membership.subscriptions_changed(topic)

    def pause(self, *targets: str | MessageQueue) -> None:
        """Begins no listener for messages of these topics or queues, and pulls no more of them,
        until `resume`; without targets, of everything. Listeners that run go on. The queues stay
        this member's; those of a topic that it gets later are paused too. Retries come from a topic
        of the group's own, which only a pause of everything holds.

        Raises INVALID_PARAMETER (a topic that is not subscribed to).
        """
        chosen = self._targets(targets)
        if self._membership is None:
            self._paused.update(chosen)
        else:
            self._membership.assignment.pause(chosen)

    def resume(self, *targets: str | MessageQueue) -> None:
        """Ends the pause of these topics, with their queues, or queues; without targets, of
        everything. Raises as `pause` does."""
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
                raise MqError(
                    Code.INVALID_PARAMETER,
                    f"{self.consumer_group} does not subscribe to {topic}: give one of "
                    f"{', '.join(self._subscriptions)}",
                )
        return targets or list(self._subscriptions)

    def set_concurrency(self, concurrency: int) -> None:
        """Calls of the listener at a time, from now on. Raises INVALID_PARAMETER."""
        PROCESS.check()
        self.options = replace(self.options, concurrency=concurrency)
        if self._membership is not None:
            self._membership.consumption.set_concurrency(concurrency)

    def statistics(self) -> ConsumerStatistics:
        """What this member has done since its start. Each heartbeat tells the brokers, and
        `aerobee group members` shows it. Zeros while it is not started."""
        membership = self._membership
        if membership is None:
            return ConsumerStatistics()
        tally, given_up = membership.consumption.tally, membership.consumption.settled_failures
        broadcasts = self.options.message_model is MessageModel.BROADCASTING
        return statistics_of(
            tally,
            membership.pulled,
            sent_back=0 if broadcasts else given_up,
            passed_over=given_up if broadcasts else 0,
        )

    async def start(self) -> None:
        """Joins the group and starts to consume. A topic that does not exist yet is consumed as
        soon as it exists.

        Raises NamesrvUnreachable, and a refusal that every broker gives
        (SUBSCRIPTION_GROUP_NOT_EXIST, …).
        """
        PROCESS.check()
        if self._membership is not None:
            return
        instance = ClientInstance(
            self._namesrv,
            machine_room=self.options.machine_room,
            transport=self._transport,
            clock=self._clock,
        )
        self._instance = instance  # also while it closes: a listener that runs may reply
        self._consume.use_time_of(instance.now_ms_at)
        membership = self._orderly(instance) if self.options.orderly else self._concurrent(instance)
        self._membership = membership
        membership.assignment.tell(self._callbacks(instance))
        membership.assignment.pause(self._paused)
        membership.tell_statistics(self.statistics)
        try:
            await membership.start()
        except BaseException:
            self._membership = None
            await membership.close(0)
            raise
        if self._membership is not membership:  # closed meanwhile
            await membership.close(0)
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
                self._consume, offsets, rejections, instance.clock, self.options
            ),
        )

    def _orderly(self, instance: ClientInstance) -> _Membership:
        offsets = OffsetStore(instance, self.consumer_group, locked=True)
        keeper = LockKeeper(instance, self.consumer_group)
        consumption = OrderlyConsumption(
            self._consume,
            offsets,
            _sent_back(instance, self.consumer_group, self.options),
            instance.clock,
            self.options,
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
        )
        membership.keep_in_order(OrderedQueues(keeper, consumption, offsets))
        return membership

    def _callbacks(self, instance: ClientInstance) -> AssignmentCallbacks:
        options = self.options
        on_assigned = [options.on_assigned] if options.on_assigned else []
        if not options.orderly:
            on_assigned.append(FifoWarning(instance, self.consumer_group))
        return AssignmentCallbacks(on_assigned, [options.on_revoked] if options.on_revoked else [])

    async def commit(self, message: ReceivedMessage | None = None) -> None:
        """With `orderly=True, auto_commit=False`: commits what the listener has consumed of all
        queues. With `message`: what it has consumed of that one's queue (message group, with
        `order_by="message_group"`) up to it; the listener may commit the message that it has.

        Raises ILLEGAL_OPERATION, QUEUE_LOCK_NOT_HELD (the queue of `message` is another member's,
        which gets again what was not committed).
        """
        await self._in_order().commit(message)

    async def rollback(self, message: ReceivedMessage | None = None) -> None:
        """With `orderly=True, auto_commit=False`: what was not committed comes again after the
        suspend time, of all queues or, with `message`, of its queue (message group). It counts as
        no attempt, and neither does what the listener that calls it returns. Raises as `commit`
        does."""
        self._in_order().roll_back(message)

    def _in_order(self) -> OrderlyConsumption:
        PROCESS.check()
        if self._membership is None:
            raise ClientClosed("consumer")
        consumption = self._membership.consumption
        if isinstance(consumption, ConcurrentConsumption):
            raise MqError(
                Code.ILLEGAL_OPERATION,
                "a concurrent consumer commits by itself: give it orderly=True, auto_commit=False",
            )
        return consumption

    async def close(self, timeout: timedelta = CLOSE_TIMEOUT) -> None:
        """Stops pulling, waits up to `timeout` for running listeners, commits the offsets and
        leaves the group. When it is cancelled it does not wait for the listeners. May be called
        twice.

        Raises INVALID_PARAMETER for another timeout, and then does nothing; ILLEGAL_OPERATION when
        the listener calls it: it would wait for itself.
        """
        timeout_s = check_duration("timeout", timeout, 0, FOREVER_S)
        if PROCESS.is_child:
            return  # the membership is the parent's
        if self._membership is not None and self._membership.consumption.runs_in(
            asyncio.current_task()
        ):
            raise _closed_by_listener("task")
        membership, self._membership = self._membership, None
        if membership is not None:
            try:
                await membership.close(timeout_s)
            finally:
                self._instance = None

    def consumes_on(self, thread: threading.Thread) -> bool:
        """Whether the listener runs on `thread`."""
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
    """Where the offsets are kept, and what becomes of rejected messages."""
    if options.message_model is MessageModel.CLUSTERING:
        return OffsetStore(instance, consumer_group), _sent_back(instance, consumer_group, options)
    file = None
    if options.offset_file is not None:
        # Its lock is of Unix: who keeps no file needs none.
        from aerobee_client.consuming.broadcast.offset_file import OffsetFile

        file = OffsetFile(options.offset_file)
    return LocalOffsets(file), PassOver(options.broadcast_attempts)


def _sent_back(
    instance: ClientInstance, consumer_group: str, options: ConsumerOptions
) -> Rejections:
    """Rejected messages go back to their broker, and interceptors are told."""
    rejections: Rejections = SendBack(instance, consumer_group, options.max_reconsume_times)
    if options.interceptors:
        rejections = ToldRejections(rejections, consumer_group, options.interceptors)
    return rejections


def _closed_by_listener(where: str) -> MqError:
    return MqError(
        Code.ILLEGAL_OPERATION,
        "close() waits for the listener, so the listener cannot call it: call it from another "
        f"{where}",
    )


class PushConsumer(StartedFacade[AsyncPushConsumer]):
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
        client = AsyncPushConsumer(
            consumer_group, listener, batch_listener=batch_listener, namesrv=namesrv, **settings
        )
        super().__init__(client, "aerobee consumer")

    @property
    def consumer_group(self) -> str:
        return self._client.consumer_group

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that this member owns now, those of the retry topic included."""
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
        """As AsyncPushConsumer.close. Raises ILLEGAL_OPERATION when the listener calls it."""
        check_duration("timeout", timeout, 0, FOREVER_S)
        if self._loop.is_running() and self._client.consumes_on(threading.current_thread()):
            raise _closed_by_listener("thread")
        self._close(lambda: self._client.close(timeout))
