"""One simple consumer in its group, from start to close: its registration with brokers, and what
receives and settles. The inside of `simple_consumer.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack

from aerobee.broker.v1 import client_pb2, message_pb2, pop_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.expression_check import check_expression
from aerobee_client.leasing.lease_calls import LeaseCalls
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.order_check import warn_without_order
from aerobee_client.leasing.receiving.pops import Receive, TopicPops
from aerobee_client.leasing.receiving.receiver import Receiver
from aerobee_client.leasing.settlements import Settlements
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.reading import ConsumeFromWhere
from aerobee_client.options.simple_consumer import SimpleConsumerOptions
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

_STARTS = {
    ConsumeFromWhere.LAST_OFFSET: pop_pb2.POP_START_AUTOMATIC,
    ConsumeFromWhere.FIRST_OFFSET: pop_pb2.POP_START_EARLIEST,
}


class LeasingMember:
    """`subscriptions`: by topic; the caller may change them meanwhile, and says so."""

    def __init__(
        self,
        consumer_group: str,
        instance: ClientInstance,
        subscriptions: Mapping[str, message_pb2.Subscription],
        options: SimpleConsumerOptions,
    ) -> None:
        self._consumer_group = consumer_group
        self._instance = instance
        self._subscriptions = subscriptions
        self._options = options
        calls = LeaseCalls(instance, options.request_timeout.total_seconds())
        start = _STARTS[options.consume_from_where]
        self._receiver = Receiver(
            instance,
            consumer_group,
            calls,
            TopicPops(instance, consumer_group, fifo=options.fifo, start=start),
            machine_room=options.machine_room,
        )
        self.settlements = Settlements(calls, instance.clock)

    async def start(self) -> None:
        """Registers the member. Raises MqError; `close` is still to be called."""
        # The stream of notices tells brokers at once when this client is gone.
        self._instance.start(self._heartbeat, self._receiver.sources.on_notice)
        await self._announce()
        await self._receiver.sources.start()
        if self._options.fifo:
            await warn_without_order(self._instance, self._consumer_group, self._subscriptions)

    async def check(self, subscription: message_pb2.Subscription) -> None:
        """Raises SUBSCRIPTION_PARSE_FAILED for SQL92 that brokers do not understand."""
        if subscription.expression_type == message_pb2.Subscription.SQL92:
            await check_expression(self._instance, subscription)

    def subscriptions_changed(self) -> None:
        """Brokers are told before the next receive."""
        self._receiver.sources.announce_again()

    async def _announce(self) -> None:
        """Tells every broker what the group subscribes to. Raises a refusal that all give."""
        for topic, subscription in list(self._subscriptions.items()):
            await self.check(subscription)
            try:
                await self._instance.routes.route(topic)
            except MqError as error:
                if error.code is not Code.TOPIC_NOT_EXIST:
                    raise
                log.warning("%s waits for topic %s: %s", self._consumer_group, topic, error)
        await self._instance.announce()

    async def close(self) -> None:
        """Waits for receives and settlements that are under way, then unregisters, also when it is
        cancelled."""
        async with AsyncExitStack() as steps:  # run in reverse order
            steps.push_async_callback(self._instance.close)
            steps.push_async_callback(self.settlements.close)
            steps.push_async_callback(self._receiver.close)

    async def receive(self, asked: Receive) -> list[LeasedMessage]:
        messages = await self._receiver.receive(asked)
        if messages:
            self.settlements.received(messages)
        return messages

    def statistics(self) -> ConsumerStatistics:
        return self.settlements.statistics(self._receiver.failures)

    def _heartbeat(self) -> client_pb2.HeartbeatRequest:
        request = self._instance.new_heartbeat()
        request.consumers.add(
            consumer_group=self._consumer_group,
            consume_type=client_pb2.POP,
            message_model=client_pb2.CLUSTERING,
            consume_from_where=self._options.consume_from_where.value,
            subscriptions=self._subscriptions.values(),
            statistics=self.statistics().to_proto(),
        )
        return request
