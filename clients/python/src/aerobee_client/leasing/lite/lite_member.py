"""Run one consumer of lite topics in its group, from start to close.

This is the inside of `lite_simple_consumer.py`.
"""

from __future__ import annotations

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.leasing.lease_calls import LeaseCalls
from aerobee_client.leasing.lease_member import LeaseMember
from aerobee_client.leasing.lite.lite_pops import LitePops
from aerobee_client.leasing.lite.subscription import LiteSubscription
from aerobee_client.leasing.receiving.receiver import Receiver
from aerobee_client.leasing.settlements import Settlements
from aerobee_client.options.lite_consumer import LiteConsumerOptions
from aerobee_wire.tags import ALL


class LiteMember(LeaseMember):
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
        """Start the member. Raises MqError; call `close` even then."""
        # With the stream of notices, brokers notice at once when this client disconnects.
        self._instance.start(
            self._heartbeat, self._receiver.sources.on_notice, on_link=self.subscription.on_link
        )
        await self._instance.routes.route(self.subscription.parent)
        await self._instance.announce()
        await self.subscription.start()

    async def close(self) -> None:
        """Stop reporting subscriptions, then close the member: see LeaseMember.close."""
        try:
            await self.subscription.close()
        finally:
            await super().close()
