"""Administration across several tables and the store: change or delete topics, delete groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from aerobee_broker.delivery.letters.letter_jobs import LetterJobs
from aerobee_broker.delivery.lite.state import LiteState
from aerobee_broker.delivery.metadata_journal import MetadataJournal
from aerobee_broker.delivery.pop.lease_space import LeaseSpace
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.errors import MessagesUnreadable
from aerobee_broker.metadata.config_table import updated
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.clients import Clients
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire import topics as names

# The fields of a TopicConfig that an update cannot change.
_NO_SETTINGS = ("topic", "shrunk_from", "expired_before_ms", "inherited_ms")
Durable = asyncio.Future[None] | None  # done when a record of the log is durable


@dataclass(frozen=True, slots=True)
class TopicUpdate:
    before: TopicConfig | None  # None: the topic does not exist
    after: TopicConfig
    # Queue id → number of messages, for queues that consumers do not read after the update.
    unreadable: Mapping[int, int]
    unreachable_namesrvs: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Administration:
    store: MessageStore
    topics: TopicRegistry
    groups: GroupRegistry
    clients: Clients
    offsets: ConsumerOffsets
    saved_offsets: PersistentTable
    polls: LongPolls
    leases: LeaseSpace
    journal: MetadataJournal | None  # None unless the broker's log has replicas
    lite: LiteState
    forget_topic: Callable[[str], None]  # drops the statistics of a deleted topic
    forget_group: Callable[[str], None]
    letters: LetterJobs

    async def update_topic(
        self,
        given: TopicConfig,
        named: Collection[str],
        *,
        dry_run: bool,
        force: bool,
        allow_missing: bool = False,
    ) -> TopicUpdate:
        """Change settings of a topic.

        Args:
            given: The topic with its new settings.
            named: The names of the settings to change. The others stay as they are.
            dry_run: Check the update and return its result, but do not apply it.
            force: Apply the update even if consumers can then not read some messages.
            allow_missing: With `dry_run`, check a topic that does not exist as a new one.

        Raises:
            TopicNotExist: The topic does not exist.
            InvalidParameter: A setting is invalid.
            NoPermission: The topic is a system topic.
            MessagesUnreadable: Consumers could not read some messages, and `force` is false.
        """
        if dry_run and allow_missing and given.topic not in self.topics.table:
            self.topics.check(given)
            return TopicUpdate(None, given, {})
        before = self.topics.get(given.topic)
        after = updated(before, given, named, fixed=_NO_SETTINGS)
        self.topics.check(after)
        unreadable = self._unreadable(before, after)
        if dry_run:
            return TopicUpdate(before, after, unreadable)
        if unreadable and not force:
            raise MessagesUnreadable(given.topic, unreadable)
        put = await self.topics.put(after)
        return TopicUpdate(before, after, unreadable, put.unreachable_namesrvs)

    def _unreadable(self, before: TopicConfig, after: TopicConfig) -> dict[int, int]:
        """Return queue id → number of messages, for queues that consumers can then not read.

        Contains the queues with messages that the change takes from consumers, and the queues that
        the change opens to producers only.
        """
        topic, most = after.topic, max(before.queue_count, after.queue_count)
        messages = {
            queue_id: self.store.max_offset(topic, queue_id)
            - self.store.min_offset(topic, queue_id)
            for queue_id in range(after.read_queue_count, most)
        }
        lost = range(after.read_queue_count, before.read_queue_count)
        written = set(range(after.read_queue_count, after.write_queue_count))
        written -= set(range(before.read_queue_count, before.write_queue_count))
        return {
            queue_id: count
            for queue_id, count in messages.items()
            if (queue_id in lost and count) or queue_id in written
        }

    async def delete_topic(self, topic: str) -> bool:
        """Delete a topic with its consumer offsets and consume queues; return whether it existed.

        Raises the errors of the store. If the log rejects records, nothing has changed.

        All changes in memory are made before the first await, because a send may recreate the topic
        during an await. Otherwise, messages of the new topic could be deleted.
        """
        logged: list[Durable] = []
        removed = await self._remove_topic(topic, lambda: self._forget_topic(topic, logged))
        for durable in filter(None, logged):
            await asyncio.shield(durable)
        return removed

    async def _remove_topic(self, topic: str, forget: Callable[[], None]) -> bool:
        queue_ids = self.store.queues(topic)

        def forget_and_wake() -> None:
            forget()
            for queue_id in queue_ids:
                self.polls.wake_pulls(topic, queue_id)

        removed = await self.topics.remove(topic, forget_and_wake, self.saved_offsets.save)
        if removed:
            self.forget_topic(topic)
        return removed

    def _forget_topic(self, topic: str, logged: list[Durable]) -> None:
        """Remove the data of a topic from the store and from memory.

        Adds what becomes durable later to `logged`. After an error nothing has changed.
        """
        self.leases.check_forget(topic=topic)
        self.lite.check_forget(topic=topic)
        (self.journal or self.store).delete_topic(topic)
        self.offsets.remove_topic(topic)
        self.clients.forget_pulled_to(topic=topic)
        if names.is_dead_letter(topic):
            self.letters.forget_group(topic.removeprefix(names.DLQ_PREFIX))
        logged.extend([self.leases.forget(topic=topic), self.lite.forget(topic=topic)])

    async def delete_group(self, consumer_group: str, *, remove_offsets: bool) -> bool:
        """Delete a group; return whether it existed. Raises the errors of `delete_topic`.

        With `remove_offsets`, its retry topic is deleted too, and a redrive to it is cancelled.
        Otherwise a later group of the name would receive the retries. Dead letters stay.

        All changes in memory are made before the first await, because a consumer may recreate the
        group during an await. If saving fails, the caller can repeat the deletion.
        """
        logged: list[Durable] = []
        retries = names.retry_topic(consumer_group)

        def forget() -> None:
            if not remove_offsets:
                return
            self.leases.check_forget(consumer_group=consumer_group)
            self.lite.check_forget(consumer_group=consumer_group)
            self.letters.check_cancel_retries(consumer_group)
            if retries in self.topics.table:
                self._forget_topic(retries, logged)
            self.offsets.remove_group(consumer_group)
            self.clients.forget_pulled_to(consumer_group=consumer_group)
            logged.append(self.leases.forget(consumer_group=consumer_group))
            logged.append(self.lite.forget(consumer_group=consumer_group))
            logged.append(self.letters.cancel_retries(consumer_group))

        deleted = False

        def remove() -> None:
            nonlocal deleted
            deleted = self.groups.remove(consumer_group, forget)
            self.polls.wake_group(consumer_group)

        # Save the group last. After a kill before that, the group starts from the beginning.
        # Otherwise, a new group of the same name would resume from the old offsets.
        if remove_offsets and consumer_group in self.groups.table and retries in self.topics.table:
            await self._remove_topic(retries, remove)
        else:
            remove()
            if deleted and remove_offsets:
                await self.saved_offsets.save()
        for durable in filter(None, logged):
            await asyncio.shield(durable)
        if deleted:
            self.forget_group(consumer_group)
            await self.groups.save()
        return deleted
