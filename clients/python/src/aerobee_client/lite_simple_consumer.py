"""Receiving messages of lite topics on lease: the public classes.

A group is bound to one topic of the type LITE, and each of its clients chooses, one by one, which
lite topics under it it gets. What is received is settled as that of a simple consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Unpack

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
from aerobee_client.leasing.lite.lite_member import LiteMember
from aerobee_client.leasing.receiving.pops import Receive
from aerobee_client.options.lite_consumer import (
    LiteConsumerOptions,
    LiteConsumerSettings,
    OffsetOption,
)
from aerobee_client.options.names import with_settings
from aerobee_client.options.simple_consumer import check_receive
from aerobee_client.runtime.clock import Clock, SystemClock
from aerobee_client.runtime.facade import blocking
from aerobee_wire.topics import check_topic


class AsyncLiteSimpleConsumer(LeaseConsumer[LiteMember]):
    """Receives messages of lite topics on lease; for asyncio.

    `topic`: the parent, to which the group is bound. Keyword arguments: LiteConsumerOptions.
    `transport` and `clock` are for tests.
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
        self._namesrv = namesrv
        self._transport = transport
        self._clock = clock or SystemClock()

    async def start(self) -> None:
        """Registers with the brokers. In a wildcard group it gets every lite topic from now on.

        Raises NamesrvUnreachable, TOPIC_NOT_EXIST, and a refusal that every broker gives:
        SUBSCRIPTION_GROUP_NOT_EXIST, INVALID_PARAMETER (the group is not bound to this topic), …
        """
        await self._start()

    def _new_member(self) -> tuple[ClientInstance, LiteMember]:
        instance = ClientInstance(self._namesrv, transport=self._transport, clock=self._clock)
        return instance, LiteMember(self.consumer_group, self.topic, instance, self.options)

    async def subscribe_lite(
        self, *lite_topics: str, offset_option: OffsetOption = OffsetOption.LAST_OFFSET
    ) -> None:
        """Gets these lite topics too, which need not exist yet, while it is started; every broker
        of the topic knows it when this returns. In an exclusive group it takes them from others.

        `offset_option`: where the group goes on in them, not only this client. Raises
        INVALID_PARAMETER, LITE_SUBSCRIPTION_QUOTA_EXCEEDED, ILLEGAL_OPERATION in a wildcard group,
        and why a broker was not reached within `request_timeout`; none is subscribed to then.
        """
        await self._running().subscription.add(lite_topics, offset_option)

    async def unsubscribe_lite(self, *lite_topics: str) -> None:
        """Gets these no more; what is on lease can still be settled, and the group stays where it
        is. Raises why a broker was not reached, which is told again every 30 s."""
        await self._running().subscription.remove(lite_topics)

    @property
    def lite_topics(self) -> frozenset[str]:
        """Those that it subscribes to, and has not lost to another client. Empty in a wildcard
        group, and while it is not started."""
        return frozenset() if self._member is None else self._member.subscription.names

    async def receive(
        self,
        max_messages: int = 32,
        invisible_duration: timedelta = INVISIBLE_DURATION,
        wait: timedelta = POLL,
        *,
        renew: bool = False,
    ) -> list[LeasedMessage]:
        """Up to 32 messages of any of its lite topics (`message.lite_topic`), each of these in
        order, for `invisible_duration` (up to 12 h). No more of a lite topic comes to the group
        before all that it got of it is settled, or its lease is over. All are of one broker.

        `wait`: for a message; an empty list when it is over. `renew`: the leases are renewed until
        the messages are settled, this consumer is closed, or three hours are over.

        Raises INVALID_PARAMETER, NO_PERMISSION, and what every broker failed with until `wait` was
        over.
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
    """Receives messages of lite topics on lease; for programs without asyncio. Any thread may use
    it.

    Arguments and behaviour are those of AsyncLiteSimpleConsumer.
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
        """As AsyncLiteSimpleConsumer.lite_topics."""
        return self._client.lite_topics

    subscribe_lite = blocking(AsyncLiteSimpleConsumer.subscribe_lite)
    unsubscribe_lite = blocking(AsyncLiteSimpleConsumer.unsubscribe_lite)
    receive = blocking(AsyncLiteSimpleConsumer.receive, LeaseConsumer._take_back)
