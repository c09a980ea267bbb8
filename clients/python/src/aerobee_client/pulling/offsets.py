"""Load, commit and look up the offsets of a pull consumer.

Without a consumer group, offsets are not stored. The functions ask brokers for the bounds of queues
and for offsets by store time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from aerobee.broker.v1 import offset_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.consuming.offsets import OffsetStore
from aerobee_client.message_queue import MessageQueue
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError, invalid_parameter

CALL_TIMEOUT_S = 3.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PullOffsets(OffsetStore):
    """The offsets of a pull consumer.

    If `consumer_group` is "", offsets are neither loaded nor committed. Without `auto_commit`, only
    `commit_now` or a reset by a broker (`set`) changes an offset. `on_settle` is called before
    commits and before queues are released, and may advance offsets.
    """

    def __init__(
        self,
        instance: ClientInstance,
        consumer_group: str,
        *,
        auto_commit: bool,
        on_settle: Callable[[], None],
    ) -> None:
        super().__init__(instance, consumer_group)
        self._kept = bool(consumer_group)
        self._auto_commit = auto_commit
        self._on_settle = on_settle

    def settle(self) -> None:
        self._on_settle()

    def commit_with_pull(self, queue: MessageQueue) -> int | None:
        return super().commit_with_pull(queue) if self._kept else None

    def advance(self, queue: MessageQueue, queue_offset: int) -> None:
        if self._auto_commit:
            super().advance(queue, queue_offset)

    def sought(self, queue: MessageQueue, queue_offset: int) -> None:
        """Move the offset of a queue after a seek, so that the next commit stores it."""
        if self._auto_commit:
            self.set(queue, queue_offset)

    async def load(self, topic: str, broker_name: str) -> dict[int, int]:
        return await super().load(topic, broker_name) if self._kept else {}

    async def commit(
        self,
        queues: Iterable[MessageQueue] | None = None,
        on_topic_deleted: Callable[[MessageQueue], None] = lambda _: None,
    ) -> None:
        if self._kept:
            self.settle()
            await super().commit(queues, on_topic_deleted)

    async def commit_now(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets, and wait until the brokers have stored them.

        Raises the first MqError after the requests to all brokers have ended.
        """
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue, queue_offset in offsets.items():
            self.set(queue, queue_offset)
            by_broker.setdefault(queue.broker_name, []).append(queue)
        failure: MqError | None = None
        for broker_name, queues in by_broker.items():
            async with self._locks.setdefault(broker_name, asyncio.Lock()):
                held = {queue: at for queue in queues if (at := self.get(queue)) is not None}
                try:
                    await self._send(broker_name, held)
                except MqError as error:
                    failure = failure or error
        if failure is not None:
            raise failure


class Bounds(NamedTuple):
    """The first offset of a queue, and the offset of the next message that it will store."""

    begin: int
    end: int


async def bounds(
    instance: ClientInstance, queues: Iterable[MessageQueue]
) -> dict[MessageQueue, Bounds]:
    """Return the first and the end offset of each queue.

    Raises MqError if a broker does not answer or does not have a queue.
    """
    by_place: dict[tuple[str, str], list[MessageQueue]] = {}
    for queue in queues:
        by_place.setdefault((queue.topic, queue.broker_name), []).append(queue)
    found: dict[MessageQueue, Bounds] = {}
    for part in await asyncio.gather(*(_bounds(instance, *at) for at in by_place.items())):
        found |= part
    return found


async def offset_at(instance: ClientInstance, queue: MessageQueue, moment: datetime) -> int:
    """Return the offset of the first message that was stored at or after `moment`.

    Return the end offset of the queue if all messages are older.
    """
    if moment.tzinfo is None:
        raise invalid_parameter(
            f"the time {moment} has no time zone: give one, datetime.UTC perhaps"
        )
    await instance.routes.route(queue.topic)
    request = offset_pb2.SearchOffsetRequest(
        topic=queue.topic,
        queue_id=queue.queue_id,
        timestamp_ms=max(0, -((_EPOCH - moment) // timedelta(milliseconds=1))),
    )
    response = await instance.ask_broker(
        queue.broker_name, rpcs.SEARCH_OFFSET, request, timeout_s=CALL_TIMEOUT_S
    )
    return response.queue_offset


async def offsets_at(
    instance: ClientInstance, times: Mapping[MessageQueue, datetime]
) -> dict[MessageQueue, int]:
    found = await asyncio.gather(*(offset_at(instance, *item) for item in times.items()))
    return dict(zip(times, found, strict=True))


async def _bounds(
    instance: ClientInstance, place: tuple[str, str], queues: list[MessageQueue]
) -> dict[MessageQueue, Bounds]:
    topic, broker_name = place
    await instance.routes.route(topic)
    request = offset_pb2.GetQueueOffsetsRequest(
        topic=topic, queue_ids=[queue.queue_id for queue in queues]
    )
    response = await instance.ask_broker(
        broker_name, rpcs.GET_QUEUE_OFFSETS, request, timeout_s=CALL_TIMEOUT_S
    )
    found = {
        queue.queue_id: Bounds(queue.min_offset, queue.max_offset) for queue in response.queues
    }
    for queue in queues:
        if queue.queue_id not in found:
            raise MqError(Code.QUEUE_NOT_EXIST, f"broker {broker_name} has no queue {queue}")
    return {queue: found[queue.queue_id] for queue in queues}
