"""One consumer of lite topics in its group, from start to close. The inside of
`lite_simple_consumer.py`."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack

from aerobee.broker.v1 import client_pb2, message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.leasing.lease_calls import LeaseCalls
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.lite.lite_pops import LitePops
from aerobee_client.leasing.lite.subscription import LiteSubscription
from aerobee_client.leasing.receiving.pops import Receive
from aerobee_client.leasing.receiving.receiver import Receiver
from aerobee_client.leasing.settlements import Settlements
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.lite_consumer import LiteConsumerOptions
from aerobee_wire.tags import ALL


class LiteMember:
    def __init__(
        self,
        consumer_group: str,
        parent: str,
        instance: ClientInstance,
        options: LiteConsumerOptions,
    ) -> None:
        self._consumer_group = consumer_group
        self._instance = instance
        self.subscriptions = {parent: message_pb2.Subscription(topic=parent, expression=ALL)}
        calls = LeaseCalls(instance, options.request_timeout.total_seconds())
        self.subscription = LiteSubscription(
            instance, calls, consumer_group, parent, options.on_evicted
        )
        pops = LitePops(instance, consumer_group, self.subscription)
        self._receiver = Receiver(instance, consumer_group, calls, pops)
        self.settlements = Settlements(calls, instance.clock)

    async def start(self) -> None:
        """Raises MqError; `close` is still to be called."""
        # The stream of notices tells brokers at once when this client is gone.
        self._instance.start(
            self._heartbeat, self._receiver.sources.on_notice, on_link=self.subscription.on_link
        )
        await self._instance.routes.route(self.subscription.parent)
        await self._instance.announce()
        await self.subscription.start()

    async def close(self) -> None:
        """As LeasingMember.close."""
        async with AsyncExitStack() as steps:  # run in reverse order
            steps.push_async_callback(self._instance.close)
            steps.push_async_callback(self.settlements.close)
            steps.push_async_callback(self._receiver.close)
            steps.push_async_callback(self.subscription.close)

    async def receive(self, asked: Receive) -> list[LeasedMessage]:
        messages = await self._receiver.receive(asked)
        for _, of_one in itertools.groupby(messages, lambda one: one.handle.lease_id):
            self.settlements.received(list(of_one))
        return messages

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
