"""Changing and deleting topics, deleting groups: what touches several tables, or the store too."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from aerobee_broker.delivery.lite.state import LiteState
from aerobee_broker.delivery.metadata_journal import MetadataJournal
from aerobee_broker.delivery.pop.leases import Leases
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.errors import MessagesUnreadable
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.registry.updates import updated
from aerobee_broker.store.message_store import MessageStore

# Fields of a TopicConfig that no update changes.
_NO_SETTINGS = ("topic", "shrunk_from")


@dataclass(frozen=True, slots=True)
class TopicUpdate:
    before: TopicConfig
    after: TopicConfig
    # Queue id → its messages, of the queues that lose their readers.
    unreadable: Mapping[int, int]
    unreachable_namesrvs: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Administration:
    store: MessageStore
    topics: TopicRegistry
    groups: GroupRegistry
    offsets: ConsumerOffsets
    saved_offsets: PersistentTable
    polls: LongPolls
    leases: Leases
    journal: MetadataJournal | None  # of a broker whose log has replicas
    lite: LiteState

    async def update_topic(
        self, given: TopicConfig, named: Collection[str], *, dry_run: bool, force: bool
    ) -> TopicUpdate:
        """Changes the `named` settings to those of `given`; with `dry_run` nothing changes.

        Raises TopicNotExist, InvalidParameter, NoPermission, and, without `force`,
        MessagesUnreadable.
        """
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
        """Queue id → its messages, of the queues that have or will get messages that nobody reads,
        and which the change from `before` makes so."""
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
        """Also its consumer offsets and consume queues. False: there was no such topic. Raises what
        the store raises: when its log takes nothing, nothing is done.

        All of it before anything is waited for: a send may make the topic again at any moment, and
        what it stores then is the new topic's.
        """
        logged: list[asyncio.Future[None] | None] = []

        def forget() -> None:
            self.leases.check_forget(topic=topic)
            self.lite.check_forget(topic=topic)
            (self.journal or self.store).delete_topic(topic)
            self.offsets.remove_topic(topic)
            logged.extend([self.leases.forget(topic=topic), self.lite.forget(topic=topic)])
            for queue_id in queue_ids:
                self.polls.wake_pulls(topic, queue_id)

        queue_ids = self.store.queues(topic)
        removed = await self.topics.remove(topic, forget)
        if removed:  # by time, a kill could leave them to a topic that is made again
            await self.saved_offsets.save()
        for durable in filter(None, logged):
            await asyncio.shield(durable)
        return removed

    async def delete_group(self, consumer_group: str, *, remove_offsets: bool) -> bool:
        """False: there was no such group. Raises as `delete_topic` does.

        A consumer may make the group again at any moment, so all of it is done at once; and a
        deletion that fails when it is saved leaves nothing that a second one would not find.
        """
        logged: list[asyncio.Future[None] | None] = []

        def forget() -> None:
            if remove_offsets:
                self.leases.check_forget(consumer_group=consumer_group)
                self.lite.check_forget(consumer_group=consumer_group)
                self.offsets.remove_group(consumer_group)
                logged.append(self.leases.forget(consumer_group=consumer_group))
                logged.append(self.lite.forget(consumer_group=consumer_group))

        deleted = self.groups.remove(consumer_group, forget)
        # The group last: a kill before that leaves one that begins anew, not what a group of its
        # name would go on from.
        if deleted and remove_offsets:
            await self.saved_offsets.save()
        for durable in filter(None, logged):
            await asyncio.shield(durable)
        if deleted:
            await self.groups.save()
        return deleted
