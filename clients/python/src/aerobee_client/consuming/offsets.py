"""Keep the consumer offsets of a member in memory, and commit them to the brokers.

A consumer offset is the offset of the next message to consume. In memory it only grows, unless
`set` is called. Broadcasting members store their offsets themselves (`broadcasting.py`).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from aerobee.broker.v1 import offset_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import MessageModel
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)
CALL_TIMEOUT_S = 5.0
# Codes of a refused queue: its topic was deleted or has fewer queues now, or another member
# has its lock.
_QUEUE_CODES = frozenset({Code.TOPIC_NOT_EXIST, Code.INVALID_PARAMETER, Code.QUEUE_LOCK_NOT_HELD})


class Taken(NamedTuple):
    """The stored offsets of queues that a member is about to consume, by queue id.

    `held` are the ids of queues that another member has not released yet. That member may still
    commit offsets for them.
    """

    offsets: dict[int, int]
    held: frozenset[int] = frozenset()


def _ignore(_: MessageQueue) -> None: ...


class OffsetTable(ABC):
    """Keeps the offsets of one member.

    If `locked` is true, the member locks its queues before it pulls and commits.
    """

    message_model: ClassVar[MessageModel]

    def __init__(self, *, locked: bool = False) -> None:
        self.locked = locked
        self._offsets: dict[MessageQueue, int] = {}

    async def open(self) -> None:  # noqa: B027  # most tables have nothing to open or close
        """Open the table before first use. Raises MqError if the stored offsets cannot be used."""

    async def close(self) -> None:  # noqa: B027
        """Close the table after the last commit. May be called twice, and without `open`."""

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue that is in memory, or None."""
        return self._offsets.get(queue)

    def advance(self, queue: MessageQueue, queue_offset: int) -> None:
        """Move the offset of a queue forward to `queue_offset`, never back."""
        if queue_offset > self._offsets.get(queue, -1):
            self._offsets[queue] = queue_offset

    def set(self, queue: MessageQueue, queue_offset: int) -> None:
        """Move the offset of a queue to `queue_offset`, forward or back."""
        self._offsets[queue] = queue_offset

    def forget(self, queue: MessageQueue) -> None:
        """Remove the offset of a queue from memory. The stored offset stays."""
        self._offsets.pop(queue, None)

    def discard(self, queue: MessageQueue) -> None:
        """Remove the offset of a queue whose topic was deleted, from memory and from the store."""
        self.forget(queue)

    def settle(self) -> None:  # noqa: B027
        """Advance the offsets past consumed messages, before queues are released."""

    @abstractmethod
    def commit_with_pull(self, queue: MessageQueue) -> int | None:
        """Return the offset that a pull of `queue` also commits, or None to commit none."""

    @abstractmethod
    async def load(self, topic: str, broker_name: str) -> dict[int, int]:
        """Return the stored offsets of a topic at a broker, by queue id. Raises MqError."""

    async def take(self, topic: str, broker_name: str, queue_ids: Sequence[int]) -> Taken:
        """Load the stored offsets of `queue_ids`, which a member is about to consume.

        Raises MqError like `load`.
        """
        return Taken(await self.load(topic, broker_name))

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Store the offsets of queues that are no longer consumed, then remove them from memory."""
        await self.commit(queues)
        for queue in queues:
            self.forget(queue)

    @abstractmethod
    async def commit(
        self,
        queues: Iterable[MessageQueue] | None = None,
        on_topic_deleted: Callable[[MessageQueue], None] = _ignore,
    ) -> None:
        """Store the offsets that changed since the last commit: of `queues`, or of all queues.

        The next commit retries offsets that cannot be stored now. `on_topic_deleted` is called with
        each queue whose broker no longer has the topic.
        """


class OffsetStore(OffsetTable):
    """Keeps the offsets of a consumer group and commits them to the brokers, which store them."""

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
        """Commit the offsets of queues and release the queues.

        After that, another member may read the offsets. If a broker did not accept the offset of a
        queue, that queue is not released.
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
