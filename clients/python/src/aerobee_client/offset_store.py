"""How far a group has consumed: kept in memory, committed to the brokers in the background.

An offset names the next message to consume. In memory it only grows, unless it is set on purpose.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from aerobee.broker.v1 import offset_pb2

from aerobee_client import rpcs
from aerobee_client.client_instance import ClientInstance
from aerobee_client.message_queue import MessageQueue
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0


class OffsetStore:
    def __init__(self, instance: ClientInstance, consumer_group: str) -> None:
        self._instance = instance
        self._consumer_group = consumer_group
        self._offsets: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}

    def get(self, queue: MessageQueue) -> int | None:
        """In memory; None when there is none."""
        return self._offsets.get(queue)

    def advance(self, queue: MessageQueue, queue_offset: int) -> None:
        """To `queue_offset`, never back."""
        if queue_offset > self._offsets.get(queue, -1):
            self._offsets[queue] = queue_offset

    def set(self, queue: MessageQueue, queue_offset: int) -> None:
        """To `queue_offset`, also back."""
        self._offsets[queue] = queue_offset
        self._committed.pop(queue, None)

    def forget(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._committed.pop(queue, None)

    async def load(self, topic: str, broker_name: str) -> dict[int, int]:
        """What the broker has stored: queue id → offset. Raises MqError."""
        request = offset_pb2.QueryConsumerOffsetsRequest(
            consumer_group=self._consumer_group, topic=topic
        )
        response = await self._instance.transport.call(
            self._instance.routes.address_of(broker_name),
            rpcs.QUERY_CONSUMER_OFFSETS,
            request,
            timeout_s=CALL_TIMEOUT_S,
        )
        return {stored.queue_id: stored.queue_offset for stored in response.offsets}

    async def commit(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Tells the brokers what has changed; of `queues` only, when given. What a broker does not
        take is committed again the next time."""
        chosen = self._offsets if queues is None else queues
        by_broker: dict[str, dict[MessageQueue, int]] = {}
        for queue in chosen:
            offset = self._offsets.get(queue)
            if offset is not None and self._committed.get(queue) != offset:
                by_broker.setdefault(queue.broker_name, {})[queue] = offset
        for broker_name, offsets in by_broker.items():
            try:
                await self._commit_at(broker_name, offsets)
            except MqError as error:
                log.warning("offsets not committed at broker %s: %s", broker_name, error)

    async def _commit_at(self, broker_name: str, offsets: dict[MessageQueue, int]) -> None:
        request = offset_pb2.UpdateConsumerOffsetsRequest(consumer_group=self._consumer_group)
        for queue, queue_offset in offsets.items():
            request.offsets.add(
                topic=queue.topic, queue_id=queue.queue_id, queue_offset=queue_offset
            )
        await self._instance.transport.call(
            self._instance.routes.address_of(broker_name),
            rpcs.UPDATE_CONSUMER_OFFSETS,
            request,
            timeout_s=CALL_TIMEOUT_S,
        )
        for queue, queue_offset in offsets.items():
            if queue in self._offsets:
                self._committed[queue] = queue_offset
