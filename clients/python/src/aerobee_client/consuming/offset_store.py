"""Keep the consumer offsets of a group in memory, and commit them to the brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from aerobee.broker.v1 import offset_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.consuming.offset_table import OffsetTable, Taken
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import MessageModel
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
# Refusals of one queue: its topic was deleted or has fewer queues now, or another member has its
# lock.
_QUEUE_CODES = frozenset({Code.TOPIC_NOT_EXIST, Code.INVALID_PARAMETER, Code.QUEUE_LOCK_NOT_HELD})


class OffsetStore(OffsetTable):
    message_model = MessageModel.CLUSTERING

    def __init__(
        self, instance: ClientInstance, consumer_group: str, *, locked: bool = False
    ) -> None:
        super().__init__(locked=locked)
        self._instance = instance
        self._consumer_group = consumer_group
        self._committed: dict[MessageQueue, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}  # by broker name
        # A member that locks its queues does not need handovers.
        self._hands_over = bool(consumer_group) and not locked

    def set(self, queue: MessageQueue, queue_offset: int) -> None:
        super().set(queue, queue_offset)
        self._committed.pop(queue, None)

    def forget(self, queue: MessageQueue) -> None:
        super().forget(queue)
        self._committed.pop(queue, None)

    def commit_with_pull(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def load(self, topic: str, broker_name: str) -> dict[int, int]:
        return (await self._load(topic, broker_name)).offsets

    async def take(self, topic: str, broker_name: str, queue_ids: Sequence[int]) -> Taken:
        if not self._hands_over:
            return Taken(await self.load(topic, broker_name))
        client_id = self._instance.client_id
        return await self._load(topic, broker_name, client_id=client_id, queue_ids=queue_ids)

    async def _load(self, topic: str, broker_name: str, **taking: Any) -> Taken:
        request = offset_pb2.QueryConsumerOffsetsRequest(
            consumer_group=self._consumer_group, topic=topic, **taking
        )
        response = await self._instance.call_broker(
            broker_name, rpcs.QUERY_CONSUMER_OFFSETS, request, timeout_s=CALL_TIMEOUT_S
        )
        return Taken(
            {stored.queue_id: stored.queue_offset for stored in response.offsets},
            frozenset(held.queue_id for held in response.held),
        )

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Commit the offsets of queues and release them.

        Another member may then read the offsets. A queue is not released if its offset was not
        committed because its broker did not answer.
        """
        await self.commit(queues)
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            if self._hands_over and not self._is_changed(queue):
                by_broker.setdefault(queue.broker_name, []).append(queue)
            self.forget(queue)
        for broker_name, released in by_broker.items():
            request = self._update()
            for queue in released:
                request.released.add(topic=queue.topic, queue_id=queue.queue_id)
            try:
                await self._instance.call_broker(
                    broker_name, rpcs.UPDATE_CONSUMER_OFFSETS, request, timeout_s=CALL_TIMEOUT_S
                )
            except MqError as error:  # the next member waits a while, then takes them all the same
                log.info("queues not released at broker %s: %s", broker_name, error)

    def _update(self) -> offset_pb2.UpdateConsumerOffsetsRequest:
        return offset_pb2.UpdateConsumerOffsetsRequest(
            consumer_group=self._consumer_group,
            client_id=self._instance.client_id,
            locked=self.locked,
        )

    async def commit(
        self,
        queues: Iterable[MessageQueue] | None = None,
        on_topic_deleted: Callable[[MessageQueue], None] = lambda _: None,
    ) -> None:
        """Commit the offsets. The next commit retries an offset that a broker refuses."""
        chosen = self._offsets if queues is None else queues
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in chosen:
            if self._is_changed(queue):
                by_broker.setdefault(queue.broker_name, []).append(queue)
        for broker_name, changed in by_broker.items():
            # One commit at a time: an older offset must not overtake a newer one.
            async with self._locks.setdefault(broker_name, asyncio.Lock()):
                await self._commit_at(broker_name, changed, on_topic_deleted)

    def _is_changed(self, queue: MessageQueue) -> bool:
        offset = self._offsets.get(queue)
        return offset is not None and self._committed.get(queue) != offset

    async def _commit_at(
        self,
        broker_name: str,
        queues: list[MessageQueue],
        on_topic_deleted: Callable[[MessageQueue], None],
    ) -> None:
        # Checked again: a queue that was released in the meantime belongs to another member.
        offsets = {queue: self._offsets[queue] for queue in queues if self._is_changed(queue)}
        if not offsets:
            return
        try:
            await self._send(broker_name, offsets)
        except MqError as error:
            if error.code in _QUEUE_CODES and len(offsets) > 1:  # the broker accepted none of them
                for queue in offsets:
                    await self._commit_at(broker_name, [queue], on_topic_deleted)
                return
            log.warning("offsets not committed at broker %s: %s", broker_name, error)
            if error.code is Code.TOPIC_NOT_EXIST:
                for queue in offsets:
                    on_topic_deleted(queue)

    async def _send(self, broker_name: str, offsets: dict[MessageQueue, int]) -> None:
        request = self._update()
        for queue, queue_offset in offsets.items():
            request.offsets.add(
                topic=queue.topic, queue_id=queue.queue_id, queue_offset=queue_offset
            )
        await self._instance.call_broker(
            broker_name, rpcs.UPDATE_CONSUMER_OFFSETS, request, timeout_s=CALL_TIMEOUT_S
        )
        for queue, queue_offset in offsets.items():
            if queue in self._offsets:
                self._committed[queue] = queue_offset
