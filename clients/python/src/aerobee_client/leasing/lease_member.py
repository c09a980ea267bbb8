"""Run a member of a consumer group that receives messages on lease, from start to close.

The member registers with brokers, receives messages and settles them. A simple consumer receives
from the topics to which it subscribes, and a lite consumer from lite topics.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from aerobee.broker.v1 import client_pb2, message_pb2, pop_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.expression_check import check_expression
from aerobee_client.cluster.order_warning import warn_without_order
from aerobee_client.leasing.lease_calls import LeaseCalls
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.lite_subscription import LiteSubscription
from aerobee_client.leasing.receiving.pops import LitePops, Receive, TopicPops
from aerobee_client.leasing.receiving.receiver import Receiver
from aerobee_client.leasing.settlements import Settlements
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.consumer import ConsumeFromWhere
from aerobee_client.options.lease_consumer import LiteConsumerOptions, SimpleConsumerOptions
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import ALL


class LeaseMember:
    """A member of a group. `subscriptions`, by topic, are reported to the brokers."""

    def __init__(
        self,
        consumer_group: str,
        instance: ClientInstance,
        subscriptions: Mapping[str, message_pb2.Subscription],
        receiver: Receiver,
        settlements: Settlements,
    ) -> None:
        self.subscriptions = subscriptions
        self.settlements = settlements
        self._consumer_group = consumer_group
        self._instance = instance
        self._receiver = receiver

    async def close(self) -> None:
        """Wait for receives and settlements in flight, then unregister.

        A cancelled call unregisters too.
        """
        async with AsyncExitStack() as steps:  # they run in reverse order
            steps.push_async_callback(self._instance.close)
            steps.push_async_callback(self.settlements.close)
            steps.push_async_callback(self._receiver.close)

    async def receive(self, asked: Receive) -> list[LeasedMessage]:
        messages = await self._receiver.receive(asked)
        if messages and messages[0].handle.lease_id == messages[-1].handle.lease_id:
            self.settlements.received(messages)
        else:  # each lite topic has its own lease id
            for _, of_one in itertools.groupby(messages, lambda one: one.handle.lease_id):
                self.settlements.received(list(of_one))
        return messages

    def take_back(self, messages: Sequence[LeasedMessage]) -> None:
        """Return messages that did not reach their caller to the group, in the background.

        `close` waits until the messages are returned.
        """
        self._receiver.run(self._give_back(messages))

    async def _give_back(self, messages: Sequence[LeasedMessage]) -> None:
        outcomes = await self.settlements.change(messages, 0, counted=False)
        self._receiver.report_kept(outcomes)

    def statistics(self) -> ConsumerStatistics:
        return self.settlements.statistics(self._receiver.failures)

    def _heartbeat(self) -> client_pb2.HeartbeatRequest:
        request = self._instance.new_heartbeat()
        request.consumers.add(
            consumer_group=self._consumer_group,
            consume_type=client_pb2.POP,
            message_model=client_pb2.CLUSTERING,
            subscriptions=self.subscriptions.values(),
            statistics=self.statistics().to_proto(),
        )
        return request


_STARTS = {
    ConsumeFromWhere.LAST_OFFSET: pop_pb2.POP_START_AUTOMATIC,
    ConsumeFromWhere.FIRST_OFFSET: pop_pb2.POP_START_EARLIEST,
}


class SimpleMember(LeaseMember):
    """A simple consumer as a member of its group.

    `subscriptions` is by topic. After the caller has changed it, it calls `subscriptions_changed`.
    """

    def __init__(
        self,
        consumer_group: str,
        instance: ClientInstance,
        subscriptions: Mapping[str, message_pb2.Subscription],
        options: SimpleConsumerOptions,
    ) -> None:
        calls = LeaseCalls(instance, options.request_timeout.total_seconds())
        start = _STARTS[options.consume_from_where]
        receiver = Receiver(
            instance,
            consumer_group,
            calls,
            TopicPops(instance, consumer_group, fifo=options.fifo, start=start),
            machine_room=options.machine_room,
        )
        settlements = Settlements(calls, instance.clock)
        super().__init__(consumer_group, instance, subscriptions, receiver, settlements)
        self._options = options

    async def start(self) -> None:
        """Register the member. If it raises MqError, the caller must still call `close`."""
        # With the stream of notices, brokers notice at once when this client disconnects.
        self._instance.start(self._heartbeat, self._receiver.sources.on_notice)
        await self._announce()
        await self._receiver.sources.start()
        if self._options.fifo:
            await warn_without_order(self._instance, self._consumer_group, self.subscriptions)

    async def check(self, subscription: message_pb2.Subscription) -> None:
        """Check that brokers can parse a subscription with SQL92.

        Raises MqError with the code SUBSCRIPTION_PARSE_FAILED if they cannot.
        """
        if subscription.expression_type == message_pb2.Subscription.SQL92:
            await check_expression(self._instance, subscription)

    def subscriptions_changed(self) -> None:
        """Make the next receive report the changed subscriptions to the brokers."""
        self._receiver.sources.announce_again()

    async def _announce(self) -> None:
        """Report the subscriptions to every broker. Raises MqError if all brokers refuse them."""
        for topic, subscription in list(self.subscriptions.items()):
            await self.check(subscription)
            try:
                await self._receiver.sources.route(topic)
            except MqError as error:
                if error.code is not Code.TOPIC_NOT_EXIST:
                    raise
        await self._instance.announce()

    def _heartbeat(self) -> client_pb2.HeartbeatRequest:
        request = super()._heartbeat()
        request.consumers[0].consume_from_where = self._options.consume_from_where.value
        return request


class LiteMember(LeaseMember):
    """A lite consumer as a member of its group."""

    def __init__(
        self,
        consumer_group: str,
        parent: str,
        instance: ClientInstance,
        options: LiteConsumerOptions,
    ) -> None:
        calls = LeaseCalls(instance, options.request_timeout.total_seconds())
        self.subscription = LiteSubscription(
            instance, calls, consumer_group, parent, options.on_evicted
        )
        pops = LitePops(instance, consumer_group, self.subscription)
        super().__init__(
            consumer_group,
            instance,
            {parent: message_pb2.Subscription(topic=parent, expression=ALL)},
            Receiver(instance, consumer_group, calls, pops),
            Settlements(calls, instance.clock),
        )

    async def start(self) -> None:
        """Start the member. If it raises MqError, the caller must still call `close`."""
        # With the stream of notices, brokers notice at once when this client disconnects.
        self._instance.start(
            self._heartbeat, self._receiver.sources.on_notice, on_link=self.subscription.on_link
        )
        await self._instance.routes.route(self.subscription.parent)
        await self._instance.announce()
        await self.subscription.start()

    async def close(self) -> None:
        """Stop reporting subscriptions, then close the member as LeaseMember does."""
        try:
            await self.subscription.close()
        finally:
            await super().close()
