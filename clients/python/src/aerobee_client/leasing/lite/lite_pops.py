"""Lease messages of lite topics at a broker with LitePop.

A call returns the available messages of all lite topics of the client, each in order.
"""

from __future__ import annotations

from aerobee.broker.v1 import lite_pb2, pop_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.leasing.lite.subscription import LiteSubscription
from aerobee_client.leasing.receiving.answers import Answer, Batch, Source
from aerobee_client.leasing.receiving.pops import Attempt, Receive
from aerobee_wire import rpcs
from aerobee_wire.queues.lite import line_of
from aerobee_wire.status import MqError


class LitePops:
    """Pops messages of lite topics.

    A broker gets the subscriptions of the client before the first pop, and after a failure.
    """

    named = True
    held = True
    # A lite topic has one batch at a time, which goes completely to one receive.
    apart = True

    def __init__(
        self, instance: ClientInstance, consumer_group: str, subscription: LiteSubscription
    ) -> None:
        self.failures = 0
        self._instance = instance
        self._consumer_group = consumer_group
        self._subscription = subscription

    async def pop(
        self, source: Source, asked: Receive, attempt: Attempt, *, hold_s: float, answer_s: float
    ) -> Answer:
        request = lite_pb2.LitePopRequest(
            consumer_group=self._consumer_group,
            parent=source.topic,
            client_id=self._instance.client_id,
            max_messages=asked.max_messages,
            invisible_duration_ms=asked.invisible_duration_ms,
            poll_duration_ms=round(hold_s * 1_000),
            attempt_id=attempt.name,
        )
        since = self._subscription.changes
        try:
            await self._subscription.ensure(source.broker_name)
            response = await self._instance.call_broker(
                source.broker_name, rpcs.LITE_POP, request, timeout_s=hold_s + answer_s
            )
        except MqError:
            self.failures += 1
            self._subscription.doubt(source.broker_name)
            raise
        self._subscription.lost(response.lost, since)
        batches = [self._batch(source, batch) for batch in response.batches]
        now_ms = self._instance.now_ms_at(source.broker_name) if attempt.again else None
        return Answer(batches, now_ms)

    async def has_message(
        self, source: Source, asked: Receive, *, hold_s: float, answer_s: float
    ) -> bool:
        """Check whether a source that failed accepts the client's subscriptions."""
        await self._subscription.tell(source.broker_name)
        return True

    async def is_repeated(self, source: Source, attempt_id: str) -> bool:
        """Return False: receives of lite topics have no names."""
        return False

    def _batch(self, source: Source, batch: lite_pb2.LiteMessages) -> Batch:
        asked = pop_pb2.PopRequest(
            consumer_group=self._consumer_group,
            topic=line_of(source.topic, batch.lite_topic),
            fifo=True,
        )
        return Batch(asked, batch.messages)
