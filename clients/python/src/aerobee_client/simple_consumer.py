"""Receive messages on lease: the public classes.

A receive returns messages from any broker on lease, for the invisible duration. Any process of the
group settles each message by an acknowledgement or a dead letter, in any order. Messages that are
not settled in time are redelivered. There is no listener, no rebalance and no proxy, which suits
request handlers and task runners.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Unpack

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.client_instance import ClientInstance, Connection
from aerobee_client.consuming.puller import TopicSubscription
from aerobee_client.leasing.lease_consumer import (
    INVISIBLE_DURATION,
    POLL,
    LeaseConsumer,
    LeaseFacade,
    now_s,
)
from aerobee_client.leasing.lease_member import SimpleMember
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.receiving.pops import Receive
from aerobee_client.options.bounds import with_settings
from aerobee_client.options.consumer import Sql
from aerobee_client.options.lease_consumer import (
    SimpleConsumerOptions,
    SimpleConsumerSettings,
    check_receive,
)
from aerobee_client.runtime.clock import Clock, SystemClock
from aerobee_client.runtime.facade import Done, blocking, on_loop, settled
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.runtime.kinds import checked_class
from aerobee_cluster.transport import Transport
from aerobee_wire.status import Code, MqError, invalid_parameter
from aerobee_wire.tags import ALL
from aerobee_wire.topics import check_topic


@checked_class
class AsyncSimpleConsumer(LeaseConsumer[SimpleMember]):
    """Receives messages of a consumer group on lease, for asyncio.

    Any number of receives may wait at the same time, and any number of consumers may share a group.
    Do not mix it with push or pull consumers in one group: they keep separate records of what is
    consumed.

    Args:
        consumer_group: The name of the group.
        namesrv: The addresses of the name servers, "host:port;host:port" or a sequence. Default:
            NAMESRV_ADDR of the environment.
        transport: Replaces the transport in tests.
        clock: Replaces the clock in tests.
        settings: The options of SimpleConsumerOptions.

    Raises:
        MqError: INVALID_PARAMETER for an invalid group name, or an unknown or invalid option.

    Example:
        async with AsyncSimpleConsumer("billing") as consumer:
            await consumer.subscribe("orders")
            for message in await consumer.receive(wait=timedelta(seconds=20)):
                print(message.body)
                await consumer.ack(message)
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
        self._clock = clock or SystemClock()
        self._connection = Connection(namesrv, transport, self._clock)
        self._subscriptions: dict[str, message_pb2.Subscription] = {}

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> Awaitable[None]:
        """Receive messages of `topic`. Call it before or after the start.

        The call replaces an earlier subscription of the topic. Messages that do not match the
        expression count as settled for the group. If the consumer has started and the expression is
        Sql, `await` the result: a broker must check the expression first. Without the await, the
        subscription does not change.

        Args:
            topic: The topic to receive from.
            expression: The tags to receive, such as "a || b"; "*" for all messages; or a condition
                on their properties, such as `Sql("size > 5")`.

        Returns:
            An awaitable, which does nothing unless a broker checks the expression.

        Raises:
            MqError: INVALID_PARAMETER or SUBSCRIPTION_PARSE_FAILED. For Sql before the start,
                `start` raises it.
        """
        PROCESS.check()
        check_topic(topic)
        subscription = TopicSubscription.of(topic, expression, self._clock.now_ms()).to_proto()
        if isinstance(expression, Sql) and self._member is not None:
            return self._subscribe_checked(subscription, self._member)
        self._subscribe(subscription)
        return Done()

    def unsubscribe(self, topic: str) -> None:
        """Stop receiving from `topic`. Messages on lease can still be settled."""
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
        """Register with the brokers.

        If a topic does not exist yet, its messages are received as soon as it exists.

        Raises:
            NamesrvUnreachable: If no name server answers.
            MqError: SUBSCRIPTION_PARSE_FAILED, or a refusal that every broker gives
                (SUBSCRIPTION_GROUP_NOT_EXIST, …).
        """
        await self._start()

    def _new_member(self) -> tuple[ClientInstance, SimpleMember]:
        instance = self._connection.open(self.options, machine_room=self.options.machine_room)
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
        """Receive messages on lease.

        Other consumers of the group do not get these messages until the lease ends. All messages of
        one call come from one broker, and each call begins with another broker.

        Args:
            max_messages: The maximum number of messages, 1 to 32.
            invisible_duration: The duration of the lease, 1 ms to 12 h.
            wait: The maximum time to wait for a message of any broker and topic, up to 24 h.
            topic: Receive from this topic only.
            attempt_id: With `fifo`, the name of this receive. A receive with the same name, in any
                process, returns the same messages while they are on lease. Without a name, the next
                receive repeats a receive whose answer was lost.
            renew: Whether to renew the leases until the messages are settled, this consumer is
                closed, or three hours have passed.

        Returns:
            The messages; an empty list if none arrives within `wait`.

        Raises:
            MqError: INVALID_PARAMETER, SUBSCRIPTION_NOT_EXIST, SUBSCRIPTION_PARSE_FAILED,
                NO_PERMISSION, or the error of every broker until the end of `wait`
                (TOPIC_NOT_EXIST, …).
            BrokerUnreachable: If no broker could be reached until the end of `wait`.
        """
        self._running()
        check_receive(max_messages, invisible_duration, wait)
        if attempt_id and not self.options.fifo:
            raise invalid_parameter(
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
        """Return the subscriptions to receive from: of `topic`, or all if it is None.

        Raises MqError with the code SUBSCRIPTION_NOT_EXIST if there is none.
        """
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


class SimpleConsumer(LeaseFacade[AsyncSimpleConsumer]):
    """Receives messages of a consumer group on lease. Any thread may use it.

    This class is for programs without asyncio. Arguments and behaviour are those of
    AsyncSimpleConsumer.

    Example:
        with SimpleConsumer("billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer.receive():
                print(message.body)
                consumer.ack(message)
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
