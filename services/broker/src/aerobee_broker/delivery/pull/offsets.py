"""Queries of queue bounds and offsets by time; queries and changes of the offsets of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.errors import InvalidParameter, NoPermission
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.offset_history import COMMIT, RESET, Mover
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.clients import Client, Clients
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.queue_locks import QueueLocks
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire import topics as names
from aerobee_wire.queues import lite
from aerobee_wire.status import Code, MqError


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The lowest and highest offset and store time of a queue.

    `max_offset` is the offset that the next message will get. The timestamps are 0 if the queue is
    empty or the caller did not request them.
    """

    queue_id: int
    min_offset: int
    max_offset: int
    earliest_timestamp_ms: int
    latest_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """The bounds of a topic's queues, and the topic's settings on this broker.

    Consumers read only the queues with an id below `read_queue_count`. `permission` is the sum of 4
    if the topic is readable and 2 if it is writable.
    """

    queues: list[QueueBounds]
    read_queue_count: int
    permission: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a group in one message queue.

    `consumer_offset` is None in two cases. Either the group has not consumed from the queue, or the
    queue contains lite topics, in each of which the group has an offset. In the second case, `lag`
    is the number of messages that the group has not settled (acknowledged or dead-lettered).
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    consumer_offset: int | None
    last_timestamp_ms: int
    client_id: str = ""  # the client of the last pull
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class QueueOffset:
    topic: str
    queue_id: int
    queue_offset: int


# A function that is called before a group's offsets in a topic are reset. Its arguments are the
# group, the topic, queue id → new queue offset, and the operator. It may raise an error to reject
# the reset. The reset is durable when the returned future is done, or at once if it returns None.
OnReset = Callable[[str, str, Mapping[int, int], str], asyncio.Future[None] | None]
# A function that is called after a member that pulls committed an offset. Its arguments are the
# group, the topic and the queue id.
OnCommit = Callable[[str, str, int], None]
# A function that is called before a group's offsets in a topic are deleted, with the group and the
# topic. It may raise an error, and returns a future, like OnReset.
OnForget = Callable[[str, str], asyncio.Future[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueQueries:
    """Queries of queues that need no consumer group. A master and a slave answer them alike."""

    store: MessageStore
    topics: TopicRegistry

    def bounds(
        self, topic: str, queue_ids: Sequence[int], *, with_timestamps: bool = True
    ) -> TopicBounds:
        """Return the bounds of these queues, or of all queues if the list is empty."""
        config = self.topics.get(topic)
        queues = [
            self._queue_bounds(topic, queue_id, with_timestamps)
            for queue_id in self._queues(config, queue_ids)
        ]
        return TopicBounds(queues, config.read_queue_count, config.permission)

    def _queue_bounds(self, topic: str, queue_id: int, with_timestamps: bool) -> QueueBounds:
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        if not with_timestamps:
            return QueueBounds(queue_id, low, high, 0, 0)
        earliest_ms = self.store.store_timestamp(topic, queue_id, low)
        latest_ms = self.store.store_timestamp(topic, queue_id, high - 1)
        return QueueBounds(queue_id, low, high, earliest_ms, latest_ms)

    def search(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool) -> int:
        """Return the offset of the first message stored at or after a time.

        With `upper`, return the offset of the last message stored at or before the time.
        """
        self._queues(self.topics.get(topic), [queue_id])
        return self.store.search_offset(topic, queue_id, timestamp_ms, upper=upper)

    @staticmethod
    def _queues(config: TopicConfig, queue_ids: Sequence[int]) -> Sequence[int]:
        for queue_id in queue_ids:
            if not 0 <= queue_id < config.queue_count:
                raise InvalidParameter(
                    f"queue {queue_id} of {config.topic} is out of range: it has queues 0 to "
                    f"{config.queue_count - 1} here"
                )
        return queue_ids or range(config.queue_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetQueries(QueueQueries):
    groups: GroupRegistry
    offsets: ConsumerOffsets
    saved_offsets: PersistentTable
    clients: Clients
    locks: QueueLocks
    polls: LongPolls
    on_commit: OnCommit
    on_reset: OnReset
    on_forget: OnForget

    def stored(self, consumer_group: str, topic: str) -> list[QueueOffset]:
        """Return the offsets of a group in a topic, or in all topics if `topic` is empty."""
        topics = [topic] if topic else self.offsets.topics_of(consumer_group)
        return [
            QueueOffset(name, queue_id, offset)
            for name in topics
            for queue_id, offset in sorted(self.offsets.of(consumer_group, name).items())
        ]

    def update(
        self,
        consumer_group: str,
        offsets: Iterable[QueueOffset],
        *,
        client_id: str = "",
        locked: bool = False,
    ) -> list[QueueOffset]:
        """Commit offsets of a group, which may be lower than the current ones.

        If one offset is invalid, no offset changes. After a reset of a group with live members, an
        offset that may have been sent before the reset is ignored. An offset beyond the end of its
        queue is also ignored, and returned: its consumer has read messages that an unclean election
        lost, or an operator gave another number, such as a time. With `locked`, `client_id` must
        hold the locks of all queues.

        Raises GroupNotExist, TopicNotExist, NoPermission, InvalidParameter, QueueLockNotHeld.
        """
        self.groups.get(consumer_group)
        _check_own(consumer_group)
        checked = list(offsets)
        for offset in checked:
            self._queues(self.topics.get(offset.topic), [offset.queue_id])
            if offset.queue_offset < 0:
                raise InvalidParameter(f"queue offset {offset.queue_offset} is below 0")
            self.locks.check(
                consumer_group, offset.topic, offset.queue_id, client_id, locked=locked
            )
        has_members = bool(self.clients.consumers(consumer_group))
        beyond_end: list[QueueOffset] = []
        for offset in checked:
            if not has_members:  # without members, no earlier commit can undo a reset
                self.offsets.take_reset(consumer_group, offset.topic, offset.queue_id)
            if offset.queue_offset > self.store.max_offset(offset.topic, offset.queue_id):
                beyond_end.append(offset)
                continue
            mover = Mover(client_id, COMMIT, self._subscribed(consumer_group, offset.topic))
            self.offsets.commit(
                consumer_group, offset.topic, offset.queue_id, offset.queue_offset, mover
            )
            self.on_commit(consumer_group, offset.topic, offset.queue_id)
        return beyond_end

    async def reset(
        self,
        consumer_group: str,
        topic: str,
        queue_ids: Sequence[int],
        *,
        timestamp_ms: int | None = None,
        queue_offset: int | None = None,
        requested_by: str = "",
    ) -> list[QueueOffset]:
        """Set a group's offsets in a topic to a store time or to an offset.

        Args:
            consumer_group: The group.
            topic: The topic.
            queue_ids: The queues to reset; all queues if it is empty.
            timestamp_ms: The store time. Below 0, or without `queue_offset`, the end of each queue.
            queue_offset: The offset; it takes precedence over `timestamp_ms`.
            requested_by: The operator, or the address of the caller, for the record of the reset.

        Returns:
            The new offsets, which are within the bounds of each queue, when they are durable.

        Raises:
            MqError: The errors of `update` and of the store. If the log rejects the change, nothing
                has changed.
        """
        self.groups.get(consumer_group)
        _check_own(consumer_group)
        queues = self._queues(self.topics.get(topic), queue_ids)
        offsets = {
            queue_id: self._target(topic, queue_id, timestamp_ms, queue_offset)
            for queue_id in queues
        }
        durable = self.on_reset(consumer_group, topic, offsets, requested_by)
        for queue_id, offset in offsets.items():
            self.offsets.reset(consumer_group, topic, queue_id, offset, Mover(requested_by, RESET))
            self.clients.pulled(consumer_group, topic, queue_id, offset)
            self.polls.wake_pulls(topic, queue_id)
        if durable is not None:
            await asyncio.shield(durable)
        await self.saved_offsets.save()
        return [QueueOffset(topic, queue_id, offset) for queue_id, offset in offsets.items()]

    async def forget(self, consumer_group: str, topic: str, *, dry_run: bool) -> list[QueueOffset]:
        """Delete the offsets and leases of a group in a topic that it does not consume any more.

        Returns the deleted offsets when the change is durable. With `dry_run`, deletes nothing, and
        returns the offsets that would be deleted.

        Raises GroupNotExist, NoPermission, InvalidParameter, and the errors of the store. Raises
        MqError with the code ILLEGAL_OPERATION while a member consumes the topic. After an error,
        nothing has changed.
        """
        self.groups.get(consumer_group)
        _check_own(consumer_group)
        self._check_left(consumer_group, topic)
        found = self.stored(consumer_group, topic)
        if not dry_run:
            durable = self.on_forget(consumer_group, topic)
            self.offsets.remove(consumer_group, topic)
            self.clients.forget_pulled_to(consumer_group=consumer_group, topic=topic)
            if durable is not None:
                await asyncio.shield(durable)
            await self.saved_offsets.save()
        return found

    def _subscribed(self, consumer_group: str, topic: str) -> str:
        """Return the filter with which the group's members subscribe to a topic, or ""."""
        subscription = (self.clients.subscriptions(consumer_group) or {}).get(topic)
        return subscription.filter.text if subscription else ""

    def _check_left(self, consumer_group: str, topic: str) -> None:
        """Check that the offsets of the group in the topic may be deleted.

        Raises MqError if a member of the group consumes the topic, and InvalidParameter for topics
        whose offsets are deleted only with the group.
        """
        config = self.topics.table.get(topic)
        if config is not None and config.message_type == lite.LITE:
            raise InvalidParameter(
                f"{topic} is a parent of lite topics: a group has a position in each of these, and "
                f"loses them when it is deleted (aerobee group delete {consumer_group})"
            )
        if topic == names.retry_topic(consumer_group):
            raise InvalidParameter(
                f"{topic} is the retry topic of {consumer_group}: its offset goes with the group "
                f"(aerobee group delete {consumer_group})"
            )
        members = [
            client.client_id
            for client in self.clients.all()
            if consumer_group in client.consumers and self._reads(client, consumer_group, topic)
        ]
        if members:
            raise MqError(
                Code.ILLEGAL_OPERATION,
                f"{', '.join(members)} of {consumer_group} consumes {topic}: stop it, or have it "
                "unsubscribe, and forget the offset then",
            )

    def _reads(self, client: Client, consumer_group: str, topic: str) -> bool:
        """Return whether a member of a group consumes a topic.

        A member without subscriptions consumes the topics from which it pulls.
        """
        subscriptions = client.consumers[consumer_group].subscriptions
        if subscriptions:
            return topic in subscriptions
        pulled = self.clients.queues_of(client)
        return any((group, name) == (consumer_group, topic) for group, name, _ in pulled)

    def _target(
        self, topic: str, queue_id: int, timestamp_ms: int | None, queue_offset: int | None
    ) -> int:
        low = self.store.min_offset(topic, queue_id)
        high = self.store.max_offset(topic, queue_id)
        if queue_offset is not None:
            return min(max(queue_offset, low), high)
        if timestamp_ms is None or timestamp_ms < 0:
            return high
        return self.store.search_offset(topic, queue_id, timestamp_ms, upper=False)

    def progress(self, consumer_group: str, topic: str = "") -> list[Progress]:
        """Return the progress of a group in each queue of a topic.

        If `topic` is empty, includes all topics that the group subscribes to or has offsets in. For
        a group that broadcasts, the list is empty.
        """
        self.groups.get(consumer_group)
        if self.clients.broadcasts(consumer_group):
            return []
        topics = [topic] if topic else self.topics_of(consumer_group)
        owners = self.clients.owners(consumer_group)
        return [
            self._progress(consumer_group, name, queue_id, owners.get((name, queue_id), ""))
            for name in topics
            if (config := self.topics.table.get(name)) is not None
            for queue_id in range(config.read_queue_count)
        ]

    def topics_of(
        self, consumer_group: str, with_offsets: Iterable[str] | None = None
    ) -> list[str]:
        """Return the topics that a group subscribes to or has offsets in, and its retry topic.

        Args:
            consumer_group: The group.
            with_offsets: The topics in which it has offsets, for a caller that has grouped all
                offsets. Without it, each call looks at the offsets of all groups.
        """
        if with_offsets is None:
            with_offsets = self.offsets.topics_of(consumer_group)
        subscribed = self.clients.subscriptions(consumer_group) or {}
        return sorted({*with_offsets, *subscribed, names.retry_topic(consumer_group)})

    def lags(self) -> Iterator[tuple[str, str, int]]:
        """Yield (consumer group, topic, lag) for each topic in which a group has offsets.

        The tables may change while the caller iterates.
        """
        for topic, group in list(self.offsets.rows()):
            if self.has_lag(group):
                yield group, topic, self.lag(group, topic)

    def has_lag(self, consumer_group: str) -> bool:
        """Return whether the offsets of a group are those of its consumers.

        False for the broker's own progress, and for a group that broadcasts: its offsets are from a
        time before.
        """
        return (
            consumer_group in self.groups.table
            and not names.is_system_group(consumer_group)
            and not self.clients.broadcasts(consumer_group)
        )

    def lag(self, consumer_group: str, topic: str) -> int:
        """Return the number of messages of a topic that a group has not consumed.

        If the group has no offset in a queue, all messages of the queue count.
        """
        config = self.topics.table.get(topic)
        offsets = self.offsets.of(consumer_group, topic)
        behind = 0
        for queue_id in range(config.read_queue_count if config else 0):
            if end := self.store.max_offset(topic, queue_id):
                start = max(self.store.min_offset(topic, queue_id), offsets.get(queue_id, 0))
                behind += max(0, end - start)
        return behind

    def expired(self, consumer_group: str, topic: str) -> int:
        """Return the number of messages that retention removed before a group consumed them.

        It counts the messages from the group's offset up to the first readable message of each
        queue, until the group continues there.
        """
        return sum(
            max(0, self.store.min_offset(topic, queue_id) - offset)
            for queue_id, offset in self.offsets.of(consumer_group, topic).items()
        )

    def _progress(self, consumer_group: str, topic: str, queue_id: int, client_id: str) -> Progress:
        offset = self.offsets.get(consumer_group, topic, queue_id)
        low = self.store.min_offset(topic, queue_id)
        return Progress(
            topic,
            queue_id,
            low,
            self.store.max_offset(topic, queue_id),
            offset,
            self.store.store_timestamp(topic, queue_id, offset - 1) if offset else 0,
            client_id,
        )


def _check_own(consumer_group: str) -> None:
    """Raise NoPermission for a system group, because the broker itself uses its offsets."""
    if names.is_system_group(consumer_group):
        raise NoPermission(f"{consumer_group} is a system group: its offsets are the broker's own")
