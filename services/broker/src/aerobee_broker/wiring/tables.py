"""The tables of a broker and their files under `config/`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.delay_offsets import DelayOffsets
from aerobee_broker.metadata.drain import Drain
from aerobee_broker.metadata.json_file import JsonFile
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metadata.subscription_groups import SubscriptionGroups
from aerobee_broker.metadata.table import Table
from aerobee_broker.metadata.topics import Topics
from aerobee_broker.wiring.environment import Environment
from aerobee_chassis.lifecycle import Component


class Tables(Component):
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.topics = Topics(environment.clock)
        self.groups = SubscriptionGroups(environment.clock)
        self.offsets = ConsumerOffsets(environment.clock)
        self.delay_offsets = DelayOffsets(environment.clock)
        self.drain = Drain(environment.clock)
        self.saved_topics = self.file_of(self.topics, "topics.json")
        self.saved_groups = self.file_of(self.groups, "subscriptionGroup.json")
        self.saved_offsets = self.file_of(self.offsets, "consumerOffset.json")
        self.saved_delay_offsets = self.file_of(self.delay_offsets, "delayOffset.json")
        self.saved_drain = self.file_of(self.drain, "brokerDrain.json")
        self.all_saved = (
            self.saved_topics,
            self.saved_groups,
            self.saved_offsets,
            self.saved_delay_offsets,
            self.saved_drain,
        )

    def restore(self) -> None:
        """Raises ConfigFileDamaged."""
        for saved in self.all_saved:
            saved.load()

    async def start(self) -> None:
        """Saves what the other components restored. A full disk does not stop the start: retention
        may make room."""
        await self.save()

    async def stop(self) -> None:
        await self.save()

    async def save(self) -> None:
        for saved in self.all_saved:
            await saved.try_save()

    def file_of(
        self, table: Table, name: str, logged: Callable[[], Awaitable[None]] | None = None
    ) -> PersistentTable:
        file = JsonFile(self._environment.disk, self._environment.path / "config" / name)
        return PersistentTable(table, file, self._environment.writer, logged)
