"""How far a group has consumed: kept in memory, committed to the brokers in the background.

An offset names the next message to consume. In memory it only grows, unless it is set on purpose.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from aerobee.broker.v1 import offset_pb2

from aerobee_client.cluster import rpcs
from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.message_queue import MessageQueue
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
# A topic that was deleted, a queue that the topic no longer has.
_OF_ONE_QUEUE = frozenset({Code.TOPIC_NOT_EXIST, Code.INVALID_PARAMETER})


class OffsetStore:
    def __init__(self, instance: ClientInstance, consumer_group: str) -> None:
        self._instance = instance
        self._consumer_group = consumer_group
        self._offsets: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}  # by broker name
        # Told of a queue whose topic does not exist there (any more).
        self.on_gone: Callable[[MessageQueue], None] = lambda _: None

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
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in chosen:
            if self._is_new(queue):
                by_broker.setdefault(queue.broker_name, []).append(queue)
        for broker_name, several in by_broker.items():
            # One at a time: an older offset must not come after a newer one.
            async with self._locks.setdefault(broker_name, asyncio.Lock()):
                await self._commit_at(broker_name, several)

    def _is_new(self, queue: MessageQueue) -> bool:
        offset = self._offsets.get(queue)
        return offset is not None and self._committed.get(queue) != offset

    async def _commit_at(self, broker_name: str, queues: list[MessageQueue]) -> None:
        # As it is now: what was let go while others were committed belongs to another member.
        offsets = {queue: self._offsets[queue] for queue in queues if self._is_new(queue)}
        if not offsets:
            return
        try:
            await self._tell(broker_name, offsets)
        except MqError as error:
            if error.code in _OF_ONE_QUEUE and len(offsets) > 1:  # the broker took none of them
                for queue in offsets:
                    await self._commit_at(broker_name, [queue])
                return
            log.warning("offsets not committed at broker %s: %s", broker_name, error)
            if error.code is Code.TOPIC_NOT_EXIST:
                for queue in offsets:
                    self.on_gone(queue)

    async def _tell(self, broker_name: str, offsets: dict[MessageQueue, int]) -> None:
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
