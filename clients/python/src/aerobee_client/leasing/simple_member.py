"""Run one simple consumer in its group, from start to close.

It registers with brokers, receives and settles. This is the inside of `simple_consumer.py`.
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
    """A simple consumer in its group.

    `subscriptions`: by topic; the caller may change them and then calls `subscriptions_changed`.
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
        """Register the member. Raises MqError; call `close` even then."""
        # With the stream of notices, brokers notice at once when this client disconnects.
        self._instance.start(self._heartbeat, self._receiver.sources.on_notice)
        await self._announce()
        await self._receiver.sources.start()
        if self._options.fifo:
            await warn_without_order(self._instance, self._consumer_group, self.subscriptions)

    async def check(self, subscription: message_pb2.Subscription) -> None:
        """Raise SUBSCRIPTION_PARSE_FAILED for SQL92 that brokers cannot parse."""
        if subscription.expression_type == message_pb2.Subscription.SQL92:
            await check_expression(self._instance, subscription)

    def subscriptions_changed(self) -> None:
        """Report the subscriptions to brokers before the next receive."""
        self._receiver.sources.announce_again()

    async def _announce(self) -> None:
        """Report the subscriptions to every broker. Raises a refusal that all brokers give."""
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
