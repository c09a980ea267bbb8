"""Register a member of a consumer group that receives messages on lease.

It receives and settles until it is closed. Its subclasses define what it receives, and how it
registers with brokers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from aerobee.broker.v1 import client_pb2, message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.receiving.pops import Receive
from aerobee_client.leasing.receiving.receiver import Receiver
from aerobee_client.leasing.settlements import Settlements
from aerobee_client.observing.statistics import ConsumerStatistics


class LeaseMember:
    """A member of a group. `subscriptions`: by topic, as reported to brokers."""

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
        """Wait for receives and settlements in flight, then unregister, even if cancelled."""
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
        """Return messages that did not reach the caller to the group. `close` waits for this."""
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
