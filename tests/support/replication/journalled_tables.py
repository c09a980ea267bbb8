"""The journalled tables of one replica, their files on its disk, and its journal: as a broker has
them, without the rest of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.delivery.metadata_journal import MetadataJournal
from aerobee_broker.delivery.metadata_replay import MetadataReplay, ReplicaParents
from aerobee_broker.disk import Disk
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.incremental_table import ChangeFile, IncrementalTable
from aerobee_broker.metadata.journal_records import JournalledTables
from aerobee_broker.metadata.persistent_table import JsonFile
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup, SubscriptionGroups
from aerobee_broker.metadata.table_journal import SavedTables, TableJournal
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.clock import Clock
from support.disk.replicated import derive_all
from support.disk.stores import PATH

T = TypeVar("T")

FILES = {
    "topics": "topics.json",
    "groups": "subscriptionGroup.json",
    "offsets": "consumerOffset.json",
}


class NoParents:
    """Of stores without lite topics."""

    def add_parent(self, parent: str) -> None:
        raise AssertionError(f"{parent} is of the type LITE")

    def remove_parent(self, parent: str) -> None: ...


class ReplicaTables:
    """Loaded from their files, and replayed, by `restore`."""

    def __init__(
        self,
        disk: Disk,
        store: MessageStore,
        clock: Clock,
        writer: Worker,
        *,
        folder: Path = PATH / "config",
        parents: ReplicaParents | None = None,
    ) -> None:
        self.tables = JournalledTables(
            Topics(clock), SubscriptionGroups(clock), ConsumerOffsets(clock)
        )
        self.journal: MetadataJournal | None = None
        journal = TableJournal()
        files = {
            name: IncrementalTable(
                table,
                JsonFile(disk, folder / FILES[name]),
                ChangeFile(disk, folder / FILES[name]),
                writer,
                journal,
            )
            for name, table in self.tables.by_name().items()
        }
        self.saved = SavedTables(self.tables, files, journal)
        self.store = store
        self.replay = MetadataReplay(store, self.saved, parents or NoParents())
        self._clock = clock

    def load(self) -> None:
        for file in self.saved.files.values():
            file.load()

    def restore(self) -> None:
        self.load()
        self.replay.restore()

    def derive_all(self) -> None:
        """A replica that becomes master: what it has counts."""
        follower = self.store.follower
        follower.confirm(self.store.end_offset, 0)
        while follower.underived or follower.halted:
            derive_all(self.store)
            self.replay.apply()

    async def lead(self, log: DurableLog) -> None:
        self.journal = MetadataJournal(log, self.saved, self._clock)
        self.journal.restore()
        await self.journal.start()

    def contents(self) -> dict[str, Any]:
        """What counts of each table: its rows."""
        return {
            name: {table.name_of(key): table.row_to_json(row) for key, row in table.rows().items()}
            for name, table in self.tables.by_name().items()
        }

    # ---- changes, each as the registry that it stands for makes it ----

    async def put_topic(self, config: TopicConfig) -> None:
        """Durable on all that may be elected when it returns."""
        self.tables.topics.put(config)
        await self.saved.files["topics"].save()

    async def delete_topic(self, topic: str) -> None:
        assert self.journal is not None
        self.journal.delete_topic(topic)
        self.tables.offsets.remove_topic(topic)
        self.tables.topics.remove(topic)
        await self.saved.files["topics"].save()
        await self.saved.files["offsets"].save()

    async def put_group(self, group: SubscriptionGroup) -> None:
        self.tables.groups.put(group)
        await self.saved.files["groups"].save()

    async def delete_group(self, consumer_group: str) -> None:
        self.tables.offsets.remove_group(consumer_group)
        self.tables.groups.remove(consumer_group)
        await self.saved.files["offsets"].save()
        await self.saved.files["groups"].save()

    async def reset(self, consumer_group: str, topic: str, queue_id: int, at: int) -> None:
        self.tables.offsets.reset(consumer_group, topic, queue_id, at)
        await self.saved.files["offsets"].save()


def on_the_spot(function: Callable[[], T], /) -> Awaitable[T]:
    """A Worker without a thread."""
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    try:
        done.set_result(function())
    except OSError as error:
        done.set_exception(error)
    return done
