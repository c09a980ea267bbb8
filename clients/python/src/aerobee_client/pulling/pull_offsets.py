"""Keep the consumer offsets of a pull consumer, for its auto-commit or for commits of its caller.

Without a consumer group, offsets are not stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.consuming.offsets import OffsetStore
from aerobee_client.message_queue import MessageQueue
from aerobee_wire.status import MqError


class PullOffsets(OffsetStore):
    """The offsets of a pull consumer.

    `consumer_group` "": offsets are neither loaded nor committed. Without `auto_commit`, an offset
    changes only by `commit_now`, or if a broker resets it (`set`). `on_settle` is called before
    commits and releases of queues, and may advance offsets.
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
        """Note that the caller continues at `queue_offset`, which a commit then stores."""
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

        Raises the first MqError, after every broker was asked.
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
