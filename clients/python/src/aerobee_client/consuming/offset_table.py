"""The consumer offsets of a member, in memory; where they are kept beyond that is for the two kinds
of tables to say: at the brokers (`offset_store.py`), or with the member (`broadcast/`).

An offset is that of the next message to consume. In memory it only grows, except by `set`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import ClassVar, NamedTuple

from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import MessageModel


class Taken(NamedTuple):
    """What is kept of queues that a member is about to consume: queue id → offset. `held`: ids of
    those that another member has not released, so that it may still commit there."""

    offsets: dict[int, int]
    held: frozenset[int] = frozenset()


def _ignore(_: MessageQueue) -> None: ...


class OffsetTable(ABC):
    """`locked`: pulls and commits are those of a member that locks its queues."""

    message_model: ClassVar[MessageModel]

    def __init__(self, *, locked: bool = False) -> None:
        self.locked = locked
        self._offsets: dict[MessageQueue, int] = {}

    async def open(self) -> None:  # noqa: B027  # most tables have nothing to open or close
        """Before first use. Raises MqError when the kept offsets cannot be used."""

    async def close(self) -> None:  # noqa: B027
        """After the last commit. May be called twice, and without `open`."""

    def get(self, queue: MessageQueue) -> int | None:
        """The offset in memory; None when there is none."""
        return self._offsets.get(queue)

    def advance(self, queue: MessageQueue, queue_offset: int) -> None:
        """Moves the offset forward to `queue_offset`; never back."""
        if queue_offset > self._offsets.get(queue, -1):
            self._offsets[queue] = queue_offset

    def set(self, queue: MessageQueue, queue_offset: int) -> None:
        """Moves the offset to `queue_offset`, forward or back."""
        self._offsets[queue] = queue_offset

    def forget(self, queue: MessageQueue) -> None:
        """Drops the offset from memory; what is kept of it stays."""
        self._offsets.pop(queue, None)

    def discard(self, queue: MessageQueue) -> None:
        """Drops the offset, and what is kept of it: the topic was deleted."""
        self.forget(queue)

    def settle(self) -> None:  # noqa: B027
        """Before queues are let go: advances what is consumed and was not advanced yet."""

    @abstractmethod
    def commit_with_pull(self, queue: MessageQueue) -> int | None:
        """The offset that a pull of `queue` tells its broker; None: it tells none."""

    @abstractmethod
    async def load(self, topic: str, broker_name: str) -> dict[int, int]:
        """The kept offsets of a topic at a broker: queue id → offset. Raises MqError."""

    async def take(self, topic: str, broker_name: str, queue_ids: Sequence[int]) -> Taken:
        """`load`, by a member that is about to consume these queues."""
        return Taken(await self.load(topic, broker_name))

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Keep the offsets of queues that are not consumed any more, then drop them from memory."""
        await self.commit(queues)
        for queue in queues:
            self.forget(queue)

    @abstractmethod
    async def commit(
        self,
        queues: Iterable[MessageQueue] | None = None,
        on_topic_deleted: Callable[[MessageQueue], None] = _ignore,
    ) -> None:
        """Keeps the offsets that changed since the last commit; only those of `queues`, when given.
        What cannot be kept now is kept by the next commit.

        `on_topic_deleted` is called with each queue whose broker no longer has the topic.
        """
