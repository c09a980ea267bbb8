"""Receive messages of lite topics on lease: the public classes.

A group is bound to one topic of the type LITE. Each client of the group chooses which lite topics
of that topic it receives. Messages are settled like messages of a simple consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Unpack

from aerobee_client.cluster.client_instance import ClientInstance, Connection
from aerobee_client.leasing.lease_consumer import (
    INVISIBLE_DURATION,
    POLL,
    LeaseConsumer,
    LeaseFacade,
    now_s,
)
from aerobee_client.leasing.lease_member import LiteMember
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.receiving.pops import Receive
from aerobee_client.options.bounds import with_settings
from aerobee_client.options.lease_consumer import (
    LiteConsumerOptions,
    LiteConsumerSettings,
    OffsetOption,
    check_receive,
)
from aerobee_client.runtime.clock import Clock
from aerobee_client.runtime.facade import blocking
from aerobee_client.runtime.kinds import checked_class
from aerobee_cluster.transport import Transport
from aerobee_wire.topics import check_topic


@checked_class
class AsyncLiteSimpleConsumer(LeaseConsumer[LiteMember]):
    """Receives messages of lite topics on lease, for asyncio.

    Args:
        consumer_group: The name of the group.
        topic: The parent topic, to which the group is bound.
        namesrv: The addresses of the name servers, "host:port;host:port" or a sequence. Default:
            NAMESRV_ADDR of the environment.
        transport: Replaces the transport in tests.
        clock: Replaces the clock in tests.
        settings: The options of LiteConsumerOptions.

    Raises:
        MqError: INVALID_PARAMETER for an invalid name, or an unknown or invalid option.

    Example:
        async with AsyncLiteSimpleConsumer("chat-clients", "chats") as consumer:
            await consumer.subscribe_lite("room-17", "room-18")
            for message in await consumer.receive():
                print(message.lite_topic, message.body)
                await consumer.ack(message)
    """

    def __init__(
        self,
        consumer_group: str,
        topic: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        transport: Transport | None = None,
        clock: Clock | None = None,
        **settings: Unpack[LiteConsumerSettings],
    ) -> None:
        self.options = with_settings(LiteConsumerOptions, settings)
        super().__init__(consumer_group, self.options.interceptors)
        check_topic(topic)
        self.topic = topic
        self._connection = Connection(namesrv, transport, clock)

    async def start(self) -> None:
        """Register with the brokers. A client of a wildcard group then receives every lite topic.

        Raises:
            NamesrvUnreachable: If no name server answers.
            MqError: TOPIC_NOT_EXIST, or a refusal that every broker gives:
                SUBSCRIPTION_GROUP_NOT_EXIST, INVALID_PARAMETER if the group is not bound to this
                topic, …
        """
        await self._start()

    def _new_member(self) -> tuple[ClientInstance, LiteMember]:
        instance = self._connection.open(self.options)
        return instance, LiteMember(self.consumer_group, self.topic, instance, self.options)

    async def subscribe_lite(
        self, *lite_topics: str, offset_option: OffsetOption = OffsetOption.LAST_OFFSET
    ) -> None:
        """Subscribe to lite topics. The call returns after every broker of the topic was notified.

        The consumer must be started. The lite topics need not exist yet. In an exclusive group,
        this client takes the lite topics over from other clients. If the call fails, this client
        subscribes to none of them.

        Args:
            lite_topics: The names of the lite topics.
            offset_option: The position at which the whole group resumes in the lite topics.

        Raises:
            MqError: INVALID_PARAMETER, LITE_SUBSCRIPTION_QUOTA_EXCEEDED, ILLEGAL_OPERATION in a
                wildcard group, or the error of a broker that was not reached within
                `request_timeout`.
        """
        await self._running().subscription.add(lite_topics, offset_option)

    async def unsubscribe_lite(self, *lite_topics: str) -> None:
        """Unsubscribe from lite topics. Messages on lease can still be settled.

        The group keeps its position in the lite topics.

        Args:
            lite_topics: The names of the lite topics.

        Raises:
            MqError: The error of a broker that was not reached. The client notifies that broker
                again every 30 s.
        """
        await self._running().subscription.remove(lite_topics)

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics that this client subscribes to and has not lost to another client.

        The set is empty in a wildcard group, and while the consumer is not started.
        """
        return frozenset() if self._member is None else self._member.subscription.names

    async def receive(
        self,
        max_messages: int = 32,
        invisible_duration: timedelta = INVISIBLE_DURATION,
        wait: timedelta = POLL,
        *,
        renew: bool = False,
    ) -> list[LeasedMessage]:
        """Receive messages of any subscribed lite topic on lease, in order within each lite topic.

        The group gets further messages of a lite topic only after all leased messages of that lite
        topic are settled or their lease has ended. All messages of one call come from one broker.

        Args:
            max_messages: The maximum number of messages, 1 to 32.
            invisible_duration: The duration of the lease, 1 ms to 12 h.
            wait: The maximum time to wait for a message, up to 24 h.
            renew: Whether to renew the leases until the messages are settled, this consumer is
                closed, or three hours have passed.

        Returns:
            The messages, with their `lite_topic`; an empty list if none arrives within `wait`.

        Raises:
            MqError: INVALID_PARAMETER, NO_PERMISSION, or the error of every broker until the end of
                `wait`.
        """
        member = self._running()
        check_receive(max_messages, invisible_duration, wait)
        asked = Receive(
            member.subscriptions,
            max_messages,
            round(invisible_duration.total_seconds() * 1_000),
            now_s() + wait.total_seconds(),
        )
        return await self._receive(asked, renew=renew)


class LiteSimpleConsumer(LeaseFacade[AsyncLiteSimpleConsumer]):
    """Receives messages of lite topics on lease. Any thread may use it.

    This class is for programs without asyncio. Arguments and behaviour are those of
    AsyncLiteSimpleConsumer.
    """

    def __init__(
        self,
        consumer_group: str,
        topic: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        **settings: Unpack[LiteConsumerSettings],
    ) -> None:
        client = AsyncLiteSimpleConsumer(consumer_group, topic, namesrv=namesrv, **settings)
        super().__init__(client, "aerobee consumer")

    @property
    def topic(self) -> str:
        return self._client.topic

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics that this client subscribes to and has not lost to another client."""
        return self._client.lite_topics

    subscribe_lite = blocking(AsyncLiteSimpleConsumer.subscribe_lite)
    unsubscribe_lite = blocking(AsyncLiteSimpleConsumer.unsubscribe_lite)
    receive = blocking(AsyncLiteSimpleConsumer.receive, LeaseConsumer._take_back)
