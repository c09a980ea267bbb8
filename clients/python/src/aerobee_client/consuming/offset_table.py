"""Keep the consumer offsets of a member in memory.

The two kinds of tables store them permanently: at the brokers (`offset_store.py`), or with the
member (`broadcast/`). An offset is that of the next message to consume. In memory it only grows,
except by `set`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import ClassVar, NamedTuple

from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import MessageModel


class Taken(NamedTuple):
    """The stored offsets of queues that a member is about to consume: queue id → offset.

    `held` are the ids of queues that another member has not released, so that it may still commit
    there.
    """

    offsets: dict[int, int]
    held: frozenset[int] = frozenset()


def _ignore(_: MessageQueue) -> None: ...


class OffsetTable(ABC):
    """A table of offsets. `locked`: the member locks its queues before it pulls and commits."""

    message_model: ClassVar[MessageModel]

    def __init__(self, *, locked: bool = False) -> None:
        self.locked = locked
        self._offsets: dict[MessageQueue, int] = {}

    async def open(self) -> None:  # noqa: B027  # most tables have nothing to open or close
        """Open the table before first use. Raises MqError if the stored offsets cannot be used."""

    async def close(self) -> None:  # noqa: B027
        """Close the table after the last commit. May be called twice, and without `open`."""

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory; None if there is none."""
        return self._offsets.get(queue)

    def advance(self, queue: MessageQueue, queue_offset: int) -> None:
        """Move the offset forward to `queue_offset`, never back."""
        if queue_offset > self._offsets.get(queue, -1):
            self._offsets[queue] = queue_offset

    def set(self, queue: MessageQueue, queue_offset: int) -> None:
        """Move the offset to `queue_offset`, forward or back."""
        self._offsets[queue] = queue_offset

    def forget(self, queue: MessageQueue) -> None:
        """Remove the offset from memory. The stored offset stays."""
        self._offsets.pop(queue, None)

    def discard(self, queue: MessageQueue) -> None:
        """Remove the offset from memory and from the store: the topic was deleted."""
        self.forget(queue)

    def settle(self) -> None:  # noqa: B027
        """Advance the offsets past consumed messages, before queues are released."""

    @abstractmethod
    def commit_with_pull(self, queue: MessageQueue) -> int | None:
        """Return the offset that a pull of `queue` reports to its broker; None for no offset."""

    @abstractmethod
    async def load(self, topic: str, broker_name: str) -> dict[int, int]:
        """Return the stored offsets of a topic at a broker: queue id → offset. Raises MqError."""

    async def take(self, topic: str, broker_name: str, queue_ids: Sequence[int]) -> Taken:
        """Load offsets as `load` does, for a member that is about to consume these queues."""
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
        """Store the offsets that changed since the last commit, only those of `queues` if given.

        Offsets that cannot be stored now are stored by the next commit. `on_topic_deleted` is
        called with each queue whose broker no longer has the topic.
        """
