"""Receiving messages on lease: the public classes.

A receive brings messages for a while (the invisible duration), from whichever broker has some. Each
is settled by an acknowledgement or a dead letter, in any order, by any process of the group; what
is not settled in time is redelivered. No listener, no rebalance and no proxy: for request handlers
and task runners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Unpack

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.transport import Transport
from aerobee_client.errors import ClientClosed, LeaseFailures
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.leasing_member import Leased, LeasingMember
from aerobee_client.leasing.receiving import Receive
from aerobee_client.leasing.renewal import Renewal
from aerobee_client.observing.hooks import tell
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.bounds import check_value
from aerobee_client.options.names import with_settings
from aerobee_client.options.simple_consumer import (
    MAX_INVISIBLE_S,
    SimpleConsumerOptions,
    SimpleConsumerSettings,
    check_receive,
)
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
from aerobee_wire import properties as names
from aerobee_wire.handles import receipt_handle
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import ALL, parse_expression
from aerobee_wire.topics import check_group, check_topic

POLL = timedelta(seconds=20)
INVISIBLE_DURATION = timedelta(seconds=60)
# What the broker keeps of a failure (contract: Failure).
REASON_BYTES = 256
DESCRIPTION_BYTES = 1_024

# A message, or the receipt handle of one that another process received.
MessageOrHandle = LeasedMessage | str


class AsyncSimpleConsumer(Replier):
    """Receives messages of a consumer group on lease; for asyncio.

    Any number of receives may wait at a time, and any number of consumers share a group. Keyword
    arguments: SimpleConsumerOptions. A group either leases, or is consumed by push or pull
    consumers: these keep another account of what is consumed. `transport` and `clock` are for
    tests.
    """

    def __init__(
        self,
        consumer_group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        transport: Transport | None = None,
        clock: Clock | None = None,
        **settings: Unpack[SimpleConsumerSettings],
    ) -> None:
        super().__init__()
        check_group(consumer_group)
        self.consumer_group = consumer_group
        self.options = with_settings(SimpleConsumerOptions, settings)
        self._namesrv = namesrv
        self._transport = transport
        self._clock = clock or SystemClock()
        self._interceptors = tuple(self.options.interceptors)
        self._member: LeasingMember | None = None
        self._subscriptions: dict[str, message_pb2.Subscription] = {}

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """It is told from now on, after those that are there."""
        self._interceptors = (*self._interceptors, interceptor)

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> Awaitable[None]:
        """Receives the messages of `topic` whose tag is in `expression`, "a || b"; all with "*"; or
        those that meet a condition over their properties, `Sql("size > 5")`. What it does not let
        through is settled for the group.

        Before or after start; the subscription before is replaced. Once started, `await` it for
        Sql: a broker is asked first, and without the await nothing changes.
        Raises INVALID_PARAMETER, SUBSCRIPTION_PARSE_FAILED; for Sql before the start, `start` does.
        """
        PROCESS.check()
        check_topic(topic)
        subscription = _subscription(topic, expression, self._clock.now_ms())
        if isinstance(expression, Sql) and self._member is not None:
            return self._subscribe_checked(subscription, self._member)
        self._subscribe(subscription)
        return Done()

    def unsubscribe(self, topic: str) -> None:
        """Receives no more of `topic`; what is on lease can still be settled."""
        if self._subscriptions.pop(topic, None) is not None and self._member is not None:
            self._member.subscriptions_changed()

    async def _subscribe_checked(
        self, subscription: message_pb2.Subscription, member: LeasingMember
    ) -> None:
        await member.check(subscription)
        self._subscribe(subscription)

    def _subscribe(self, subscription: message_pb2.Subscription) -> None:
        self._subscriptions[subscription.topic] = subscription
        if self._member is not None:
            self._member.subscriptions_changed()

    def statistics(self) -> ConsumerStatistics:
        """What this consumer has done since its start: `consumed` is what it acknowledged,
        `waiting` what it has on lease. Each heartbeat tells the brokers, and `aerobee group
        members` shows it. Zeros while it is not started."""
        return ConsumerStatistics() if self._member is None else self._member.statistics()

    async def start(self) -> None:
        """Registers with the brokers. A topic that does not exist yet is received from as soon as
        it exists.

        Raises NamesrvUnreachable, SUBSCRIPTION_PARSE_FAILED, and a refusal that every broker gives
        (SUBSCRIPTION_GROUP_NOT_EXIST, …).
        """
        PROCESS.check()
        if self._member is not None:
            return
        instance = ClientInstance(
            self._namesrv,
            machine_room=self.options.machine_room,
            transport=self._transport,
            clock=self._clock,
        )
        member = LeasingMember(self.consumer_group, instance, self._subscriptions, self.options)
        self._instance, self._member = instance, member
        try:
            await member.start()
        except BaseException:
            self._member = None
            await member.close()
            raise
        if self._member is not member:  # closed meanwhile
            await member.close()
            raise ClientClosed("consumer")

    async def close(self) -> None:
        """Ends waiting receives, which raise ClientClosed, waits for settlements that are under way
        and unregisters. What is on lease stays so until its lease ends. May be called twice."""
        if PROCESS.is_child:
            return  # the registration is the parent's
        member, self._member, self._instance = self._member, None, None
        if member is not None:
            await member.close()

    async def receive(
        self,
        max_messages: int = 32,
        invisible_duration: timedelta = INVISIBLE_DURATION,
        wait: timedelta = POLL,
        *,
        topic: str | None = None,
        attempt_id: str = "",
        renew: bool = False,
    ) -> list[LeasedMessage]:
        """Up to 32 messages, for `invisible_duration` (up to 12 h): nobody else of the group gets
        them until then. All are of one broker; each receive begins at another one.

        `wait`: for a message of any broker and topic; an empty list when it is over. `topic`: of
        that one only. `renew`: the leases are renewed until the messages are settled, this consumer
        is closed, or three hours are over. `attempt_id`, with `fifo`: names this receive; the same
        name again, of whichever process, brings the same messages while they are on lease. (Without
        a name, a receive whose answer was lost is repeated so by the next one.)

        Raises INVALID_PARAMETER, SUBSCRIPTION_NOT_EXIST, SUBSCRIPTION_PARSE_FAILED, NO_PERMISSION,
        and what every broker failed with until `wait` was over: TOPIC_NOT_EXIST, BrokerUnreachable…
        """
        member = self._running()
        check_receive(max_messages, invisible_duration, wait)
        if attempt_id and not self.options.fifo:
            raise MqError(
                Code.INVALID_PARAMETER,
                "attempt_id names a receive in order: make the consumer with fifo=True",
                about="attempt_id",
            )
        began_s = _now_s()
        asked = Receive(
            self._subscriptions_of(topic),
            max_messages,
            round(invisible_duration.total_seconds() * 1_000),
            began_s + wait.total_seconds(),
            attempt_id,
        )
        messages = await member.receive(asked)
        if renew and messages:
            member.renew(Renewal(messages))
        if messages:
            told = (self.consumer_group, messages, _now_s() - began_s)
            tell(self._interceptors, "after_receive", *told)
        return messages

    async def ack(self, messages: MessageOrHandle | Sequence[MessageOrHandle]) -> None:
        """Acknowledges: these messages are consumed; durable when it returns. Again is a success.

        Acknowledgements of one loop turn share a request. Raises INVALID_RECEIPT_HANDLE when the
        lease is over, so that the message is or was redelivered; for a sequence LeaseFailures,
        which says of which message what.
        """
        member, leased = self._leased(messages)
        began_s = _now_s()
        self._settled("ack", messages, await member.acknowledge(leased), began_s)

    async def change_invisible_duration(
        self,
        messages: MessageOrHandle | Sequence[MessageOrHandle],
        invisible_duration: timedelta | None,
        *,
        counted: bool = True,
    ) -> None:
        """Messages become visible to the group after `invisible_duration` from now (0 s to 12 h);
        None: after the retry delay of the group. Their renewal ends.

        0 s gives them back at once; with `counted=False` this delivery is none of the attempts.
        Raises as `ack`.
        """
        duration_ms = None
        if invisible_duration is not None:
            check_value("invisible_duration", invisible_duration, 0, MAX_INVISIBLE_S)
            duration_ms = round(invisible_duration.total_seconds() * 1_000)
        member, leased = self._leased(messages)
        began_s = _now_s()
        outcomes = await member.change(leased, duration_ms, counted=counted)
        self._settled("change_invisible_duration", messages, outcomes, began_s)

    async def dead_letter(
        self,
        messages: MessageOrHandle | Sequence[MessageOrHandle],
        reason: str | BaseException,
        description: str = "",
    ) -> None:
        """Moves messages to the dead-letter topic of the group now, with the reason; of an
        exception its class and text. Durable when it returns. Raises as `ack`."""
        if isinstance(reason, BaseException):
            reason, description = type(reason).__name__, description or str(reason)
        failure = message_pb2.Failure(
            reason=names.cut(reason, REASON_BYTES),
            description=names.cut(description, DESCRIPTION_BYTES),
        )
        member, leased = self._leased(messages)
        began_s = _now_s()
        outcomes = await member.dead_letter(leased, failure)
        self._settled("dead_letter", messages, outcomes, began_s)

    def _settled(
        self,
        operation: str,
        messages: MessageOrHandle | Sequence[MessageOrHandle],
        outcomes: Sequence[MqError | None],
        began_s: float,
    ) -> None:
        """Tells interceptors of the messages, not of mere handles. Raises as `ack`."""
        error: MqError | None = None
        try:
            _raise_failures(messages, outcomes)
        except MqError as failure:
            error = failure
            raise
        finally:
            given = [messages] if isinstance(messages, str | LeasedMessage) else messages
            if told := [message for message in given if isinstance(message, LeasedMessage)]:
                details = (self.consumer_group, operation, told, _now_s() - began_s, error)
                tell(self._interceptors, "after_settle", *details)

    @contextmanager
    def renewing(self, messages: LeasedMessage | Sequence[LeasedMessage]) -> Iterator[Renewal]:
        """`with consumer.renewing(message):` renews the lease while the block runs, three hours at
        most; settling a message ends its renewal. `lost` of what it gives: messages whose lease
        ended all the same."""
        renewal = self._renew(messages)
        try:
            yield renewal
        finally:
            self._stop_renewal(renewal)

    def _renew(self, messages: LeasedMessage | Sequence[LeasedMessage]) -> Renewal:
        renewal = Renewal([messages] if isinstance(messages, LeasedMessage) else messages)
        self._running().renew(renewal)
        return renewal

    def _stop_renewal(self, renewal: Renewal) -> None:
        if self._member is not None:
            self._member.stop_renewal(renewal)

    def _running(self) -> LeasingMember:
        PROCESS.check()
        if self._member is None:
            raise ClientClosed("consumer")
        return self._member

    def _subscriptions_of(self, topic: str | None) -> dict[str, message_pb2.Subscription]:
        """Raises SUBSCRIPTION_NOT_EXIST."""
        if topic is None:
            if self._subscriptions:
                return dict(self._subscriptions)
        elif topic in self._subscriptions:
            return {topic: self._subscriptions[topic]}
        what = "any topic" if topic is None else f"topic {topic}"
        raise MqError(
            Code.SUBSCRIPTION_NOT_EXIST,
            f"the consumer is not subscribed to {what}: call subscribe() first",
        )

    def _leased(
        self, messages: MessageOrHandle | Sequence[MessageOrHandle]
    ) -> tuple[LeasingMember, list[Leased]]:
        """Raises INVALID_RECEIPT_HANDLE, also for one of another group."""
        member = self._running()
        found: list[Leased] = []
        for one in [messages] if isinstance(messages, LeasedMessage | str) else messages:
            leased = receipt_handle.decode(one) if isinstance(one, str) else one
            handle = leased.handle if isinstance(leased, LeasedMessage) else leased
            if handle.consumer_group != self.consumer_group:
                raise MqError(
                    Code.INVALID_RECEIPT_HANDLE,
                    f"the receipt handle is of group {handle.consumer_group}, not of "
                    f"{self.consumer_group}",
                )
            found.append(leased)
        return member, found


def _now_s() -> float:
    """By the clock of the loop."""
    return asyncio.get_running_loop().time()


def _subscription(topic: str, expression: str | Sql, version: int) -> message_pb2.Subscription:
    """Raises SUBSCRIPTION_PARSE_FAILED; not for SQL92, which only a broker can parse."""
    kinds = message_pb2.Subscription
    if isinstance(expression, Sql):
        kind, text = kinds.SQL92, expression.expression
    else:
        parse_expression(expression)
        kind, text = kinds.TAG, expression
    return message_pb2.Subscription(
        topic=topic, expression=text, expression_type=kind, version=version
    )


def _raise_failures(
    messages: MessageOrHandle | Sequence[MessageOrHandle], outcomes: Sequence[MqError | None]
) -> None:
    failures = [outcome for outcome in outcomes if outcome is not None]
    if not failures:
        return
    raise failures[0] if isinstance(messages, LeasedMessage | str) else LeaseFailures(outcomes)


class SimpleConsumer(StartedFacade[AsyncSimpleConsumer]):
    """Receives messages of a consumer group on lease; for programs without asyncio. Any thread may
    use it.

    Arguments and behaviour are those of AsyncSimpleConsumer.
    """

    def __init__(
        self,
        consumer_group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        **settings: Unpack[SimpleConsumerSettings],
    ) -> None:
        client = AsyncSimpleConsumer(consumer_group, namesrv=namesrv, **settings)
        super().__init__(client, "aerobee consumer")

    @property
    def consumer_group(self) -> str:
        return self._client.consumer_group

    subscribe = settled(AsyncSimpleConsumer.subscribe)
    add_interceptor = on_loop(AsyncSimpleConsumer.add_interceptor)
    unsubscribe = on_loop(AsyncSimpleConsumer.unsubscribe)
    statistics = on_loop(AsyncSimpleConsumer.statistics)
    receive = blocking(AsyncSimpleConsumer.receive)
    ack = blocking(AsyncSimpleConsumer.ack)
    change_invisible_duration = blocking(AsyncSimpleConsumer.change_invisible_duration)
    dead_letter = blocking(AsyncSimpleConsumer.dead_letter)
    reply = blocking(AsyncSimpleConsumer.reply)
    _renew = on_loop(AsyncSimpleConsumer._renew)
    _stop_renewal = on_loop(AsyncSimpleConsumer._stop_renewal)

    @contextmanager
    def renewing(self, messages: LeasedMessage | Sequence[LeasedMessage]) -> Iterator[Renewal]:
        """As AsyncSimpleConsumer.renewing: while the block runs, the client's thread renews."""
        renewal = self._renew(messages)
        try:
            yield renewal
        finally:
            self._stop_renewal(renewal)
