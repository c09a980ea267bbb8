"""One simple consumer in its group, from start to close: its registration with brokers, and what
receives and settles. The inside of `simple_consumer.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aerobee.broker.v1 import client_pb2, message_pb2, pop_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.expression_check import check_expression
from aerobee_client.leasing.lease_calls import LeaseCalls
from aerobee_client.leasing.lease_member import LeaseMember
from aerobee_client.leasing.order_check import warn_without_order
from aerobee_client.leasing.receiving.pops import TopicPops
from aerobee_client.leasing.receiving.receiver import Receiver
from aerobee_client.leasing.settlements import Settlements
from aerobee_client.options.reading import ConsumeFromWhere
from aerobee_client.options.simple_consumer import SimpleConsumerOptions
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

_STARTS = {
    ConsumeFromWhere.LAST_OFFSET: pop_pb2.POP_START_AUTOMATIC,
    ConsumeFromWhere.FIRST_OFFSET: pop_pb2.POP_START_EARLIEST,
}


class SimpleMember(LeaseMember):
    """`subscriptions`: by topic; the caller may change them meanwhile, and says so."""

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
        """Registers the member. Raises MqError; `close` is still to be called."""
        # The stream of notices tells brokers at once when this client is gone.
        self._instance.start(self._heartbeat, self._receiver.sources.on_notice)
        await self._announce()
        await self._receiver.sources.start()
        if self._options.fifo:
            await warn_without_order(self._instance, self._consumer_group, self.subscriptions)

    async def check(self, subscription: message_pb2.Subscription) -> None:
        """Raises SUBSCRIPTION_PARSE_FAILED for SQL92 that brokers do not understand."""
        if subscription.expression_type == message_pb2.Subscription.SQL92:
            await check_expression(self._instance, subscription)

    def subscriptions_changed(self) -> None:
        """Brokers are told before the next receive."""
        self._receiver.sources.announce_again()

    async def _announce(self) -> None:
        """Tells every broker what the group subscribes to. Raises a refusal that all give."""
        for topic, subscription in list(self.subscriptions.items()):
            await self.check(subscription)
            try:
                await self._instance.routes.route(topic)
            except MqError as error:
                if error.code is not Code.TOPIC_NOT_EXIST:
                    raise
                log.warning("%s waits for topic %s: %s", self._consumer_group, topic, error)
        await self._instance.announce()

    def _heartbeat(self) -> client_pb2.HeartbeatRequest:
        request = super()._heartbeat()
        request.consumers[0].consume_from_where = self._options.consume_from_where.value
        return request
