"""Reading without a listener: the class for asyncio.

A pull consumer polls for messages when it has time for them, and says where it reads: as a member
of a group (`subscribe`), or from queues of its choice (`assign`).
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar, Unpack

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.expression_check import check_expression
from aerobee_client.cluster.transport import Transport
from aerobee_client.consuming.puller import TopicSubscription
from aerobee_client.errors import ClientClosed
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.bounds import FOREVER_S, check_duration
from aerobee_client.options.names import with_settings
from aerobee_client.options.pull_consumer import PullConsumerOptions, PullConsumerSettings
from aerobee_client.options.reading import ConsumeFromWhere
from aerobee_client.options.subscription import Sql
from aerobee_client.pulling.lent import Lent
from aerobee_client.pulling.queue_offsets import Bounds, bounds, offsets_at
from aerobee_client.pulling.reader import Reader
from aerobee_client.requesting.replies import Replier
from aerobee_client.runtime.clock import Clock, SystemClock
from aerobee_client.runtime.facade import Done
from aerobee_client.runtime.fork import PROCESS
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import ALL
from aerobee_wire.topics import check_group, check_topic

POLL_TIMEOUT = timedelta(seconds=5)
MAX_MESSAGES = 128
READ_TIMEOUT = timedelta(minutes=1)

Queues = Collection[MessageQueue]
F = TypeVar("F")  # fetched


class AsyncPullConsumer(Replier):
    """Reads message queues by polls; for asyncio. RocketMQ's lite pull consumer.

    `subscribe` makes it a member of `consumer_group`: the queues of the topics are divided among
    the members, and another member may get a queue at any time. `assign` reads queues of the
    caller's choice, whoever else reads them; with a group it starts where that has committed and
    may commit itself, without one it starts at the first message (unless `consume_from_where` is
    given) and only reads. One consumer does one of the two.

    Messages are pulled ahead, so that a poll seldom waits. With `auto_commit`, what a poll returned
    is committed after the next poll has begun, every `auto_commit_interval` and at the end: a
    program that dies gets the messages of its last poll again. One task polls at a time. Other
    keyword arguments: PullConsumerOptions. `transport` and `clock` are for tests.

    Calls raise ILLEGAL_OPERATION before start and after close, and for a queue that this consumer
    does not read, or no longer.
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
        self._namesrv = namesrv
        self._transport = transport
        self._clock = clock or SystemClock()
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._chosen: set[MessageQueue] | None = None  # None: not by `assign`
        self._reader: Reader | None = None
        self._joining = asyncio.Lock()

    # ---- what is read ----

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that are read now."""
        return frozenset() if self._reader is None else self._reader.queues()

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues of which polls return nothing."""
        return frozenset() if self._reader is None else frozenset(self._reader.unread.paused)

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """It is told after those that are there. Raises ILLEGAL_OPERATION after the start."""
        if self._reader is not None:
            raise MqError(Code.ILLEGAL_OPERATION, "add interceptors, or instrument, before start()")
        self.options = replace(self.options, interceptors=(*self.options.interceptors, interceptor))

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> Awaitable[None]:
        """Reads this member's share of `topic`: messages whose tag is in `expression`, "a || b";
        all with "*"; or those that meet a condition over their properties, `Sql("size > 5")`.

        Before or after start; the next call that waits, such as `poll`, then joins the group. Once
        it has, `await` this for Sql: a broker is asked first, and without the await nothing
        changes. Raises ILLEGAL_OPERATION (without a group, or together with `assign`),
        INVALID_PARAMETER, SUBSCRIPTION_PARSE_FAILED.
        """
        if self._chosen is not None:
            raise _both("assign", "subscribe")
        if self.consumer_group is None:
            raise MqError(
                Code.ILLEGAL_OPERATION,
                "a subscription divides queues among the members of a consumer group: give the "
                "consumer one, or assign queues to it",
            )
        subscription = self._subscription(topic, expression)
        if subscription.is_sql and self._reader is not None and self._reader.started:
            return self._subscribe_checked(subscription, self._reader)
        self._subscribe(subscription)
        return Done()

    def unsubscribe(self, topic: str) -> None:
        """Stops reading `topic`; the committed offsets stay."""
        if self._subscriptions.pop(topic, None) is not None and self._reader is not None:
            self._reader.subscriptions_changed(topic)

    def assign(self, queues: Queues, expression: str | Sql = ALL) -> None:
        """Reads `queues`, and no longer those of an earlier call. `expression`: as of `subscribe`.
        Before or after start.

        Raises ILLEGAL_OPERATION together with `subscribe`, INVALID_PARAMETER,
        SUBSCRIPTION_PARSE_FAILED.
        """
        if self._chosen is None and self._subscriptions:
            raise _both("subscribe", "assign")
        for queue in queues:
            if queue.queue_id < 0:
                raise MqError(
                    Code.INVALID_PARAMETER, f"the id of {queue} is below 0: give 0 or more"
                )
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
        """The readable queues, sorted. Raises TOPIC_NOT_EXIST, NamesrvUnreachable."""
        check_topic(topic)
        return await self._running().instance.routes.subscribe_queues(topic)

    def statistics(self) -> ConsumerStatistics:
        """What this consumer has done since its start: `consumed` is what polls before the last one
        returned. Each heartbeat of a member tells the brokers, and `aerobee group members` shows
        it. Zeros while it is not started."""
        return ConsumerStatistics() if self._reader is None else self._reader.statistics()

    # ---- life ----

    async def start(self) -> None:
        """Joins the group when topics are subscribed, starts to read what is assigned. A subscribed
        topic that does not exist yet is read as soon as it exists.

        Raises NamesrvUnreachable, TOPIC_NOT_EXIST of an assigned queue, and a refusal that every
        broker gives to a member (SUBSCRIPTION_GROUP_NOT_EXIST, …).
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
        """Commits what earlier polls returned (not the last one: `commit` does that), unless
        `auto_commit` is off, and leaves the group. A poll that waits fails, an iteration ends. May
        be called twice."""
        if PROCESS.is_child:
            return  # the reader is the parent's
        reader, self._reader, self._instance = self._reader, None, None
        if reader is not None:
            await reader.close()

    # ---- reading ----

    async def poll(
        self, max_messages: int = MAX_MESSAGES, timeout: timedelta = POLL_TIMEOUT
    ) -> list[ReceivedMessage]:
        """Up to `max_messages`, in order in each queue, as soon as there is any; [] when none comes
        within `timeout`, 0 or more. What the poll before returned now counts as consumed.

        Raises INVALID_PARAMETER, ILLEGAL_OPERATION while another poll waits, and refusals that will
        not pass by themselves (NO_PERMISSION, TOPIC_NOT_EXIST of an assigned queue, …).
        """
        timeout_s = check_duration("timeout", timeout, 0, FOREVER_S)
        reader = await self._joined()
        messages = await reader.unread.poll(max_messages, timeout_s)
        if not messages and reader.unread.closed:
            raise ClientClosed("consumer")
        return messages

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Messages until the consumer is closed, each as by a poll of its own."""
        return self

    async def __anext__(self) -> ReceivedMessage:
        reader = await self._joined()
        messages = await reader.unread.poll(1, None)
        if not messages:
            raise StopAsyncIteration
        return messages[0]

    async def read_to_end(
        self, timeout: timedelta = READ_TIMEOUT
    ) -> AsyncIterator[ReceivedMessage]:
        """The messages of the queues that are read now, up to the ends that they have now; then it
        is over. Each message is as by a poll of its own, and the end as one more.

        A queue that a rebalance takes away is left to its new owner. Raises as `poll`, ClientClosed
        when the consumer is closed before the end, and REQUEST_TIMEOUT when queues are not read to
        their ends and nothing comes of them for `timeout`.
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
        """What `fetch` returns, until there is nothing left before the ends."""
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
        """For a plain class: as an iteration, all messages that are there at once."""
        while True:
            reader = await self._joined()
            lent = await reader.unread.lend(None)
            if lent is None:
                return
            yield lent

    async def _lendings_to_end(self, timeout: timedelta) -> AsyncGenerator[Lent, None]:
        """For a plain class: as `read_to_end`, all messages that are there at once."""
        reader = await self._joined()
        async with aclosing(self._to_end(reader, reader.unread.lend, timeout)) as found:
            async for lent in found:
                if lent is not None:
                    yield lent

    def take_back(self) -> None:
        """What the last poll returned did not reach its caller: the next poll returns it again."""
        if self._reader is not None:
            self._reader.unread.take_back()

    # ---- where it reads ----

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """The next message of `queue` is the one at `queue_offset`, from the first that is there to
        the end, where the next one will be stored.

        Raises INVALID_PARAMETER beyond these bounds.
        """
        await (await self._joined()).seek_within_bounds(queue, queue_offset)

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """To the first message that is there; in `queues`, or in all when none is named."""
        self._running().seek(await self.begin_offsets(queues or None))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """To what will be stored next; in `queues`, or in all when none is named."""
        self._running().seek(await self.end_offsets(queues or None))

    async def seek_to_time(self, moment: datetime, *queues: MessageQueue) -> None:
        """To the first message that was stored at or after `moment`, which has a time zone; to the
        end where all are older. In `queues`, or in all when none is named."""
        times = dict.fromkeys(await self._read_queues(queues or None), moment)
        self._running().seek(await self.offsets_for_times(times))

    def pause(self, *queues: MessageQueue) -> None:
        """Polls return nothing of `queues` until they are resumed, also when a rebalance takes a
        queue away and gives it back. What was pulled of them stays."""
        self._running().pause(queues)

    def resume(self, *queues: MessageQueue) -> None:
        self._running().resume(queues)

    async def position(self, queue: MessageQueue) -> int:
        """The offset of the next message of `queue` that a poll can return."""
        reader = await self._joined()
        return reader.unread.position(await reader.process_queue(queue))

    async def begin_offsets(self, queues: Queues | None = None) -> dict[MessageQueue, int]:
        """The offsets of the first messages of any `queues`; None: of those that are read."""
        return {queue: at.begin for queue, at in (await self._bounds(queues)).items()}

    async def end_offsets(self, queues: Queues | None = None) -> dict[MessageQueue, int]:
        """The offsets that the next messages of any `queues` get; None: of those that are read."""
        return {queue: at.end for queue, at in (await self._bounds(queues)).items()}

    async def offsets_for_times(
        self, times: Mapping[MessageQueue, datetime]
    ) -> dict[MessageQueue, int]:
        """The offsets of the first messages that were stored at or after times, which have a time
        zone; the end where all are older."""
        return await offsets_at(self._running().instance, times)

    async def lag(self) -> dict[MessageQueue, int]:
        """Messages from the position to the end, of the queues that are read."""
        return await self._running().lag(await self.end_offsets())

    # ---- commits ----

    async def committed(self, queues: Queues | None = None) -> dict[MessageQueue, int | None]:
        """The offsets that the group has committed, of any `queues`; None: of those that are read.
        By queue; None where it has committed none."""
        chosen = await self._read_queues(queues)
        return await self._running().committed(chosen)

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None
    ) -> dict[MessageQueue, int]:
        """Commits the positions: all that polls have returned, the last one included; or these
        `offsets`, which are not beyond the positions. Returns what is committed, once the brokers
        have it.

        Raises ILLEGAL_OPERATION without a group, and for a queue that was lost; INVALID_PARAMETER
        beyond the bounds; BrokerUnreachable, RequestTimeout, when a broker may not have it.
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
        instance = ClientInstance(
            self._namesrv,
            machine_room=self.options.machine_room,
            transport=self._transport,
            clock=self._clock,
        )
        return Reader(self.consumer_group or "", instance, self.options)

    def _running(self) -> Reader:
        PROCESS.check()
        if self._reader is None:
            raise ClientClosed("consumer")
        return self._reader

    async def _joined(self) -> Reader:
        """The reader, which has joined the group when there are subscriptions."""
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
        """`given`; None: the queues that are read."""
        reader = await self._joined()
        read = reader.queues() if self._chosen is None else frozenset(self._chosen)
        return read if given is None else given

    async def _bounds(self, queues: Queues | None) -> dict[MessageQueue, Bounds]:
        chosen = await self._read_queues(queues)
        return await bounds(self._running().instance, chosen)


def _both(first: str, second: str) -> MqError:
    text = f"this consumer was told to {first} before: to {second} as well takes another consumer"
    return MqError(Code.ILLEGAL_OPERATION, text)
