"""Receiving messages on lease: the public classes.

A receive brings messages for a while (the invisible duration), from whichever broker has some. Each
is settled by an acknowledgement or a dead letter, in any order, by any process of the group; what
is not settled in time is redelivered. No listener, no rebalance and no proxy: for request handlers
and task runners.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Unpack

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.transport import Transport
from aerobee_client.leasing.lease_consumer import (
    INVISIBLE_DURATION,
    POLL,
    LeaseConsumer,
    LeaseFacade,
    now_s,
)
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.receiving.pops import Receive
from aerobee_client.leasing.simple_member import SimpleMember
from aerobee_client.options.names import with_settings
from aerobee_client.options.simple_consumer import (
    SimpleConsumerOptions,
    SimpleConsumerSettings,
    check_receive,
)
from aerobee_client.options.subscription import Sql
from aerobee_client.runtime.clock import Clock, SystemClock
from aerobee_client.runtime.facade import Done, blocking, on_loop, settled
from aerobee_client.runtime.fork import PROCESS
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import ALL, parse_expression
from aerobee_wire.topics import check_topic


class AsyncSimpleConsumer(LeaseConsumer[SimpleMember]):
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
        self.options = with_settings(SimpleConsumerOptions, settings)
        super().__init__(consumer_group, self.options.interceptors)
        self._namesrv = namesrv
        self._transport = transport
        self._clock = clock or SystemClock()
        self._subscriptions: dict[str, message_pb2.Subscription] = {}

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
        self, subscription: message_pb2.Subscription, member: SimpleMember
    ) -> None:
        await member.check(subscription)
        self._subscribe(subscription)

    def _subscribe(self, subscription: message_pb2.Subscription) -> None:
        self._subscriptions[subscription.topic] = subscription
        if self._member is not None:
            self._member.subscriptions_changed()

    async def start(self) -> None:
        """Registers with the brokers. A topic that does not exist yet is received from as soon as
        it exists.

        Raises NamesrvUnreachable, SUBSCRIPTION_PARSE_FAILED, and a refusal that every broker gives
        (SUBSCRIPTION_GROUP_NOT_EXIST, …).
        """
        await self._start()

    def _new_member(self) -> tuple[ClientInstance, SimpleMember]:
        instance = ClientInstance(
            self._namesrv,
            machine_room=self.options.machine_room,
            transport=self._transport,
            clock=self._clock,
        )
        subscriptions = self._subscriptions
        return instance, SimpleMember(self.consumer_group, instance, subscriptions, self.options)

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
        self._running()
        check_receive(max_messages, invisible_duration, wait)
        if attempt_id and not self.options.fifo:
            raise MqError(
                Code.INVALID_PARAMETER,
                "attempt_id names a receive in order: make the consumer with fifo=True",
                about="attempt_id",
            )
        asked = Receive(
            self._subscriptions_of(topic),
            max_messages,
            round(invisible_duration.total_seconds() * 1_000),
            now_s() + wait.total_seconds(),
            attempt_id,
        )
        return await self._receive(asked, renew=renew)

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


class SimpleConsumer(LeaseFacade[AsyncSimpleConsumer]):
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

    subscribe = settled(AsyncSimpleConsumer.subscribe)
    unsubscribe = on_loop(AsyncSimpleConsumer.unsubscribe)
    receive = blocking(AsyncSimpleConsumer.receive, LeaseConsumer._take_back)
