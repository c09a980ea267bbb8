"""Read messages without a listener: the class for asyncio, and the one for other programs.

A pull consumer polls for messages when it has time for them. It reads as a member of a group
(`subscribe`), or from queues that the caller chooses (`assign`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar, Unpack

from aerobee_client.cluster.client_instance import Connection
from aerobee_client.cluster.expression_check import check_expression
from aerobee_client.consuming.puller import TopicSubscription
from aerobee_client.errors import ClientClosed
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.bounds import FOREVER_S, check_duration, with_settings
from aerobee_client.options.consumer import (
    ConsumeFromWhere,
    PullConsumerOptions,
    PullConsumerSettings,
    Sql,
)
from aerobee_client.pulling.offsets import Bounds, bounds, offsets_at
from aerobee_client.pulling.reader import Reader
from aerobee_client.pulling.unread import Lent
from aerobee_client.requesting import Replier
from aerobee_client.runtime.clock import Clock, SystemClock
from aerobee_client.runtime.facade import Done, StartedFacade, blocking, like, on_loop, settled
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.runtime.kinds import checked_class
from aerobee_cluster.transport import Transport
from aerobee_wire.status import MqError, illegal_operation, invalid_parameter
from aerobee_wire.tags import ALL
from aerobee_wire.topics import check_group, check_topic

POLL_TIMEOUT = timedelta(seconds=5)
MAX_MESSAGES = 128
READ_TIMEOUT = timedelta(minutes=1)

Queues = Collection[MessageQueue]
F = TypeVar("F")  # fetched


@checked_class
class AsyncPullConsumer(Replier):
    """Reads message queues by polls, for asyncio. It corresponds to RocketMQ's lite pull consumer.

    `subscribe` makes it a member of `consumer_group`. The queues of the topics are divided among
    the members, and another member may take over a queue at any time. `assign` reads queues that
    the caller chooses, without regard to other readers. With a group, it then starts at the offsets
    that the group has committed, and it may commit. Without a group, it only reads, and it starts
    at the first message unless `consume_from_where` is given. A consumer uses either `subscribe` or
    `assign`.

    Messages are pulled ahead, so that a poll seldom waits. With `auto_commit`, the offsets of a
    poll's messages are committed after the next poll has begun, every `auto_commit_interval` and at
    close. A program that crashes therefore gets the messages of its last poll again. Only one task
    may poll at a time.

    Calls raise MqError with the code ILLEGAL_OPERATION before start and after close, and for a
    queue that this consumer does not read.

    Args:
        consumer_group: The name of the group; None to read without a group.
        namesrv: The addresses of the name servers, "host:port;host:port" or a sequence. Default:
            NAMESRV_ADDR of the environment.
        transport: Replaces the transport in tests.
        clock: Replaces the clock in tests.
        settings: The options of PullConsumerOptions.

    Example:
        async with AsyncPullConsumer("billing") as consumer:
            await consumer.subscribe("orders")
            while True:
                for message in await consumer.poll():
                    print(message.body)
    """

    def __init__(
        self,
        consumer_group: str | None = None,
        *,
        namesrv: str | Sequence[str] | None = None,
        transport: Transport | None = None,
        clock: Clock | None = None,
        **settings: Unpack[PullConsumerSettings],
    ) -> None:
        super().__init__()
        if consumer_group is None:
            settings.setdefault("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)
        else:
            check_group(consumer_group)
        self.consumer_group = consumer_group
        self.options = with_settings(PullConsumerOptions, settings)
        self._clock = clock or SystemClock()
        self._connection = Connection(namesrv, transport, self._clock)
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._chosen: set[MessageQueue] | None = None  # None if `assign` was not called
        self._reader: Reader | None = None
        self._last = ConsumerStatistics()  # of the reader that was closed
        self._joining = asyncio.Lock()

    # ---- what is read ----

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that this consumer reads now."""
        return frozenset() if self._reader is None else self._reader.queues()

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The paused queues, whose messages polls do not return."""
        return frozenset() if self._reader is None else frozenset(self._reader.unread.paused)

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """Add an interceptor after the existing interceptors.

        Args:
            interceptor: The interceptor to notify.

        Raises:
            MqError: ILLEGAL_OPERATION after the start.
        """
        if self._reader is not None:
            raise illegal_operation("add interceptors, or instrument, before start()")
        self.options = replace(self.options, interceptors=(*self.options.interceptors, interceptor))

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> Awaitable[None]:
        """Read this member's share of the queues of `topic`. Call it before or after the start.

        The next asynchronous call, such as `poll`, joins the group. If the consumer has joined
        already and the expression is Sql, `await` the result: a broker must check the expression
        first. Without the await, the subscription does not change.

        Args:
            topic: The topic to read.
            expression: The tags to read, such as "a || b"; "*" for all messages; or a condition on
                their properties, such as `Sql("size > 5")`.

        Returns:
            An awaitable, which does nothing unless a broker checks the expression.

        Raises:
            MqError: ILLEGAL_OPERATION without a group or together with `assign`, INVALID_PARAMETER,
                or SUBSCRIPTION_PARSE_FAILED.
        """
        if self._chosen is not None:
            raise _both("assign", "subscribe")
        if self.consumer_group is None:
            raise illegal_operation(
                "a subscription divides queues among the members of a consumer group: give the "
                "consumer one, or assign queues to it"
            )
        subscription = self._subscription(topic, expression)
        if subscription.is_sql and self._reader is not None and self._reader.started:
            return self._subscribe_checked(subscription, self._reader)
        self._subscribe(subscription)
        return Done()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading `topic`. The committed offsets are kept."""
        if self._subscriptions.pop(topic, None) is not None and self._reader is not None:
            self._reader.subscriptions_changed(topic)

    def assign(self, queues: Queues, expression: str | Sql = ALL) -> None:
        """Read `queues` and stop reading the queues of an earlier call.

        Call it before or after the start.

        Args:
            queues: The queues to read.
            expression: See `subscribe`.

        Raises:
            MqError: ILLEGAL_OPERATION together with `subscribe`, INVALID_PARAMETER, or
                SUBSCRIPTION_PARSE_FAILED.
        """
        if self._chosen is None and self._subscriptions:
            raise _both("subscribe", "assign")
        for queue in queues:
            if queue.queue_id < 0:
                raise invalid_parameter(f"the id of {queue} is below 0: give 0 or more")
        for topic in {queue.topic for queue in queues}:
            subscription = self._subscription(topic, expression)
            known = self._subscriptions.get(topic)
            if known is None or replace(known, version=subscription.version) != subscription:
                self._subscribe(subscription)
        if self._chosen is None:
            self._chosen = set()
        self._chosen.intersection_update(queues)
        self._chosen.update(queues)
        if self._reader is not None:
            self._reader.assign(self._chosen, self._subscriptions)

    async def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted.

        Args:
            topic: The name of the topic.

        Returns:
            The queues, by broker name and queue id.

        Raises:
            MqError: TOPIC_NOT_EXIST if the topic does not exist.
            NamesrvUnreachable: If no name server answers.
        """
        check_topic(topic)
        return await self._running().instance.routes.subscribe_queues(topic)

    def statistics(self) -> ConsumerStatistics:
        """Return the statistics of this consumer since its last start; zeros before it.

        After `close`, they are those of its end. `consumed` counts the messages of all polls before
        the last poll. Each heartbeat of a member reports the statistics to the brokers, and
        `aerobee group members` shows them.
        """
        return self._last if self._reader is None else self._reader.statistics()

    # ---- life ----

    async def start(self) -> None:
        """Join the group if topics are subscribed, or start to read the assigned queues.

        A subscribed topic that does not exist yet is read as soon as it exists.

        Raises:
            NamesrvUnreachable: If no name server answers.
            MqError: TOPIC_NOT_EXIST for an assigned queue, and a refusal that every broker gives to
                a member (SUBSCRIPTION_GROUP_NOT_EXIST, …).
        """
        PROCESS.check()
        if self._reader is not None:
            return
        self._reader = self._new_reader()
        self._instance = self._reader.instance
        try:
            if self._chosen is None:
                await self._joined()
                return
            await self._reader.find_routes(self._subscriptions)
            self._reader.assign(self._chosen, self._subscriptions)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Commit the offsets of all polls before the last one, and leave the group.

        May be called more than once. To commit the result of the last poll too, call `commit`
        before. With `auto_commit=False`, `close` does not commit. A waiting poll fails, and an
        iteration ends.
        """
        if PROCESS.is_child:
            return  # the reader belongs to the parent process
        reader, self._reader, self._instance = self._reader, None, None
        if reader is not None:
            self._last = reader.statistics()
            try:
                await reader.close()
            finally:
                self._last = reader.statistics()

    # ---- reading ----

    async def poll(
        self, max_messages: int = MAX_MESSAGES, timeout: timedelta = POLL_TIMEOUT
    ) -> list[ReceivedMessage]:
        """Wait for messages and return them, in order within each queue.

        The messages of the previous poll now count as consumed.

        Args:
            max_messages: The maximum number of messages.
            timeout: The maximum time to wait for the first message, 0 or more.

        Returns:
            The messages; an empty list if none arrives within `timeout`.

        Raises:
            MqError: INVALID_PARAMETER, ILLEGAL_OPERATION while another poll waits, and permanent
                refusals (NO_PERMISSION, TOPIC_NOT_EXIST of an assigned queue, …).
        """
        timeout_s = check_duration("timeout", timeout, 0, FOREVER_S)
        reader = await self._joined()
        messages = await reader.unread.poll(max_messages, timeout_s)
        if not messages and reader.unread.closed:
            raise ClientClosed("consumer")
        return messages

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Return an iterator over messages until the consumer is closed. Each step is a poll."""
        return self._messages()

    async def _messages(self) -> AsyncGenerator[ReceivedMessage, None]:
        reader = await self._joined()
        while messages := await reader.unread.poll(1, None):
            yield messages[0]
            if self._reader is None:  # closed meanwhile
                return
            reader = await self._joined()

    async def read_to_end(
        self, timeout: timedelta = READ_TIMEOUT
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages of all queues up to the ends that the queues have now.

        Each step of the iteration counts as a poll, so that a message is consumed when the next
        step begins. If a rebalance moves a queue to another member, that member reads the rest of
        the queue.

        Args:
            timeout: The maximum time to wait for the next messages while an end is not reached.

        Yields:
            The messages, in order within each queue.

        Raises:
            ClientClosed: If the consumer is closed before the end.
            MqError: REQUEST_TIMEOUT if no message arrives for `timeout` before the ends are
                reached, and the errors of `poll`.
        """
        reader = await self._joined()
        one = partial(reader.unread.poll, 1)
        async with aclosing(self._to_end(reader, one, timeout)) as polls:
            async for messages in polls:
                yield messages[0]

    async def _to_end(
        self,
        reader: Reader,
        fetch: Callable[[float, Mapping[MessageQueue, int]], Awaitable[F]],
        timeout: timedelta,
    ) -> AsyncGenerator[F, None]:
        """Yield the results of `fetch` until all queues are read to their present ends."""
        timeout_s = check_duration("timeout", timeout, 0, FOREVER_S)
        ends = await self.end_offsets()
        loop = asyncio.get_running_loop()
        before: dict[MessageQueue, int] = {}
        while left := reader.left(ends):
            if left != before:
                before, deadline = left, loop.time() + timeout_s
            if (wait_s := deadline - loop.time()) <= 0:
                raise reader.stalled(left, timeout)
            while fetched := await fetch(wait_s, ends):
                yield fetched
                wait_s = 0
            if reader.unread.closed:
                raise ClientClosed("consumer")
        reader.unread.consume_last()

    async def _lendings(self) -> AsyncGenerator[Lent, None]:
        """Yield all available messages at once, until close. For a loop of the plain class."""
        reader = await self._joined()
        while (lent := await reader.unread.lend(None)) is not None:
            yield lent
            if self._reader is None:  # closed meanwhile
                return
            reader = await self._joined()

    async def _lendings_to_end(self, timeout: timedelta) -> AsyncGenerator[Lent, None]:
        """Yield all available messages at once. Used by `read_to_end` of the plain class."""
        reader = await self._joined()
        async with aclosing(self._to_end(reader, reader.unread.lend, timeout)) as found:
            async for lent in found:
                if lent is not None:
                    yield lent

    def take_back(self) -> None:
        """Make the messages of the last poll unread, because they did not reach the caller."""
        if self._reader is not None:
            self._reader.unread.take_back()

    # ---- where it reads ----

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue to read `queue` at an offset.

        Args:
            queue: The queue.
            queue_offset: The offset of the next message, from the first available message to the
                end of the queue, where the next message will be stored.

        Raises:
            MqError: INVALID_PARAMETER for an offset out of these bounds.
        """
        await (await self._joined()).seek_within_bounds(queue, queue_offset)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Continue to read queues at their first available messages.

        Args:
            queues: The queues to move; if none is given, all queues that are read.
        """
        self._running().seek(await self.begin_offsets(queues or None))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Continue to read queues at their ends, with the next message that is stored.

        Args:
            queues: The queues to move; if none is given, all queues that are read.
        """
        self._running().seek(await self.end_offsets(queues or None))

    async def seek_to_time(self, moment: datetime, *queues: MessageQueue) -> None:
        """Continue to read queues at the first message that was stored at or after `moment`.

        If all messages of a queue are older, the queue continues at its end.

        Args:
            moment: A time with a time zone.
            queues: The queues to move; if none is given, all queues that are read.
        """
        times = dict.fromkeys(await self._read_queues(queues or None), moment)
        self._running().seek(await self.offsets_for_times(times))

    def pause(self, *queues: MessageQueue) -> None:
        """Exclude `queues` from polls until they are resumed.

        A queue stays paused if a rebalance takes it away and returns it. Pulled messages are kept.

        Args:
            queues: The queues to pause.
        """
        self._running().pause(queues)

    def resume(self, *queues: MessageQueue) -> None:
        self._running().resume(queues)

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of `queue` that a poll can return."""
        reader = await self._joined()
        return reader.unread.position(await reader.process_queue(queue))

    async def begin_offsets(self, queues: Queues | None = None) -> dict[MessageQueue, int]:
        """Return the offset of the first message of each queue.

        Args:
            queues: Any queues; None for the queues that this consumer reads.

        Returns:
            The offset of each queue.
        """
        return {queue: at.begin for queue, at in (await self._bounds(queues)).items()}

    async def end_offsets(self, queues: Queues | None = None) -> dict[MessageQueue, int]:
        """Return the offset that the next stored message of each queue will get.

        Args:
            queues: Any queues; None for the queues that this consumer reads.

        Returns:
            The offset of each queue.
        """
        return {queue: at.end for queue, at in (await self._bounds(queues)).items()}

    async def offsets_for_times(
        self, times: Mapping[MessageQueue, datetime]
    ) -> dict[MessageQueue, int]:
        """Return, for each queue, the offset of the first message stored at or after a time.

        Args:
            times: A time with a time zone for each queue.

        Returns:
            The offset of each queue; the end of the queue if all messages are older.
        """
        return await offsets_at(self._running().instance, times)

    async def lag(self) -> dict[MessageQueue, int]:
        """Return the number of messages from the position to the end of each queue that is read."""
        return await self._running().lag(await self.end_offsets())

    # ---- commits ----

    async def committed(self, queues: Queues | None = None) -> dict[MessageQueue, int | None]:
        """Return the offsets that the group has committed.

        Args:
            queues: Any queues; None for the queues that this consumer reads.

        Returns:
            The offset of each queue; None if the group has not committed one.
        """
        chosen = await self._read_queues(queues)
        return await self._running().committed(chosen)

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None
    ) -> dict[MessageQueue, int]:
        """Commit all messages that polls have returned, including the last poll.

        Args:
            offsets: Commit these offsets instead. They must not exceed the positions.

        Returns:
            The offsets that the brokers have stored.

        Raises:
            MqError: ILLEGAL_OPERATION without a group or for a lost queue, and INVALID_PARAMETER
                for an offset out of bounds.
            BrokerUnreachable: If a broker may not have stored the offsets.
            RequestTimeout: If a broker may not have stored the offsets.
        """
        return await (await self._joined()).commit(offsets)

    # ---- inside ----

    def _subscription(self, topic: str, expression: str | Sql) -> TopicSubscription:
        PROCESS.check()
        check_topic(topic)
        return TopicSubscription.of(topic, expression, self._clock.now_ms())

    async def _subscribe_checked(self, subscription: TopicSubscription, reader: Reader) -> None:
        await check_expression(reader.instance, subscription.to_proto())
        self._subscribe(subscription)

    def _subscribe(self, subscription: TopicSubscription) -> None:
        self._subscriptions[subscription.topic] = subscription
        if self._reader is not None:
            self._reader.subscriptions_changed(subscription.topic)

    def _new_reader(self) -> Reader:
        instance = self._connection.open(self.options, machine_room=self.options.machine_room)
        return Reader(self.consumer_group or "", instance, self.options)

    def _running(self) -> Reader:
        PROCESS.check()
        if self._reader is None:
            raise ClientClosed("consumer")
        return self._reader

    async def _joined(self) -> Reader:
        """Join the group if there are subscriptions, and return the reader."""
        reader = self._running()
        if reader.started or not self._subscriptions:
            return reader
        async with self._joining:
            reader = self._running()
            if not reader.started:
                try:
                    await reader.join(self._subscriptions)
                except BaseException:
                    if self._reader is reader:
                        self._reader = self._new_reader()  # for the next attempt
                    await reader.close()
                    raise
                if self._reader is not reader:  # closed meanwhile
                    await reader.close()
        return self._running()

    async def _read_queues(self, given: Queues | None) -> Queues:
        """Return `given`. If it is None, return the queues that this consumer reads."""
        reader = await self._joined()
        read = reader.queues() if self._chosen is None else frozenset(self._chosen)
        return read if given is None else given

    async def _bounds(self, queues: Queues | None) -> dict[MessageQueue, Bounds]:
        chosen = await self._read_queues(queues)
        return await bounds(self._running().instance, chosen)


def _both(first: str, second: str) -> MqError:
    text = f"this consumer has called {first}: use another consumer for {second}"
    return illegal_operation(text)


# A loop of the plain class takes a group of messages for this time (100 ms). Then it returns the
# remaining messages, so that consumed messages no longer count for thresholds.
LENT_S = 0.1


def _take_back(consumer: AsyncPullConsumer, _: object) -> None:
    """Return messages to the consumer that did not reach the caller because of an interrupt."""
    consumer.take_back()


@checked_class
class PullConsumer(StartedFacade[AsyncPullConsumer]):
    """Reads message queues by polls, for programs without asyncio.

    Arguments, results and errors are those of AsyncPullConsumer. Only one thread may poll at a
    time.

    Example:
        with PullConsumer("billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                print(message.body)
    """

    def __init__(
        self,
        consumer_group: str | None = None,
        *,
        namesrv: str | Sequence[str] | None = None,
        **settings: Unpack[PullConsumerSettings],
    ) -> None:
        client = AsyncPullConsumer(consumer_group, namesrv=namesrv, **settings)
        super().__init__(client, "aerobee pull consumer")

    @property
    def consumer_group(self) -> str | None:
        return self._client.consumer_group

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._client.queues

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The paused queues, whose messages polls do not return."""
        return self._client.paused

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages until the consumer is closed. Each step is a poll."""
        return self._taken(self._client._lendings(), until_closed=True)

    @like(AsyncPullConsumer.read_to_end)
    def read_to_end(self, timeout: timedelta = READ_TIMEOUT) -> Iterator[ReceivedMessage]:
        return self._taken(self._client._lendings_to_end(timeout))

    def _taken(
        self, lendings: AsyncIterator[Lent], *, until_closed: bool = False
    ) -> Iterator[ReceivedMessage]:
        take_back = partial(_take_back, self._client)
        for lent in self._iterate(lendings, take_back, until_closed=until_closed):
            since_s = time.monotonic()
            while (message := self._take(lent)) is not None:
                yield message
                PROCESS.check()
                if time.monotonic() - since_s > LENT_S:
                    break

    def _take(self, lent: Lent) -> ReceivedMessage | None:
        before = lent.taken
        try:
            return lent.take()
        except BaseException:  # an interrupt: the caller's loop does not get the message
            if lent.taken > before:
                self._loop.call(self._client.take_back)
            raise

    add_interceptor = on_loop(AsyncPullConsumer.add_interceptor)
    subscribe = settled(AsyncPullConsumer.subscribe)
    unsubscribe = on_loop(AsyncPullConsumer.unsubscribe)
    assign = on_loop(AsyncPullConsumer.assign)
    fetch_message_queues = blocking(AsyncPullConsumer.fetch_message_queues)
    statistics = on_loop(AsyncPullConsumer.statistics)
    take_back = on_loop(AsyncPullConsumer.take_back)
    poll = blocking(AsyncPullConsumer.poll, _take_back)
    seek = blocking(AsyncPullConsumer.seek)
    seek_to_begin = blocking(AsyncPullConsumer.seek_to_begin)
    seek_to_end = blocking(AsyncPullConsumer.seek_to_end)
    seek_to_time = blocking(AsyncPullConsumer.seek_to_time)
    pause = on_loop(AsyncPullConsumer.pause)
    resume = on_loop(AsyncPullConsumer.resume)
    position = blocking(AsyncPullConsumer.position)
    begin_offsets = blocking(AsyncPullConsumer.begin_offsets)
    end_offsets = blocking(AsyncPullConsumer.end_offsets)
    offsets_for_times = blocking(AsyncPullConsumer.offsets_for_times)
    lag = blocking(AsyncPullConsumer.lag)
    committed = blocking(AsyncPullConsumer.committed)
    reply = blocking(AsyncPullConsumer.reply)
    commit = blocking(AsyncPullConsumer.commit)
