"""The topics of this broker: `topics.json`. Their configuration, not their messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aerobee_broker.metadata.table import DataVersion, JournalledTable
from aerobee_broker.store.format import LITE_TOPICS, SHRUNK_TOPICS
from aerobee_chassis.clock import Clock
from aerobee_wire.queues.lite import LITE

PRIORITY = 8
READ = 4
WRITE = 2
INHERIT = 1
READ_WRITE = READ | WRITE

MESSAGE_TYPE = "message.type"  # an attribute
UNSPECIFIED = "UNSPECIFIED"  # its value until the first message that names its type


@dataclass(frozen=True, slots=True)
class TopicConfig:
    topic: str
    read_queue_count: int
    write_queue_count: int
    permission: int = READ_WRITE
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    # Number of queues before the topic was shrunk: messages in queues beyond the present ones are
    # unreadable by intent. 0: the topic was not shrunk.
    shrunk_from: int = 0

    @property
    def readable(self) -> bool:
        return bool(self.permission & READ)

    @property
    def writable(self) -> bool:
        return bool(self.permission & WRITE)

    @property
    def message_type(self) -> str:
        """The type of the messages; empty: the topic does not name one."""
        return self.attributes.get(MESSAGE_TYPE, "")

    @property
    def by_priority(self) -> bool:
        """Return whether each queue is a priority: queues with higher ids are popped first."""
        return self.message_type == "PRIORITY"

    @property
    def features(self) -> set[str]:
        """Return the features of the store's format that this topic uses."""
        found = {LITE_TOPICS} if self.message_type == LITE else set()
        return found | {SHRUNK_TOPICS} if self.shrunk_from else found

    @property
    def queue_count(self) -> int:
        """The number of queues that exist: to write, to read, or both."""
        return max(self.read_queue_count, self.write_queue_count)

    def to_json(self) -> dict[str, Any]:
        return {
            "topicName": self.topic,
            "readQueueNums": self.read_queue_count,
            "writeQueueNums": self.write_queue_count,
            "perm": self.permission,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": self.topic_sys_flag,
            "order": self.order,
            "attributes": dict(self.attributes),
            # Aerobee's own, besides RocketMQ's keys.
            **({"shrunkFrom": self.shrunk_from} if self.shrunk_from else {}),
        }

    @classmethod
    def from_json(cls, topic: str, content: Mapping[str, Any]) -> TopicConfig:
        return cls(
            topic=topic,
            read_queue_count=int(content["readQueueNums"]),
            write_queue_count=int(content["writeQueueNums"]),
            permission=int(content["perm"]),
            topic_sys_flag=int(content.get("topicSysFlag", 0)),
            order=bool(content.get("order", False)),
            attributes=dict(content.get("attributes") or {}),
            shrunk_from=int(content.get("shrunkFrom", 0)),
        )


class Topics(JournalledTable):
    """Topic name → configuration. Reads are dictionary look-ups: one per send request."""

    ROWS = "topicConfigTable"

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._configs: dict[str, TopicConfig] = {}

    def __len__(self) -> int:
        return len(self._configs)

    def __contains__(self, topic: str) -> bool:
        return topic in self._configs

    def get(self, topic: str) -> TopicConfig | None:
        return self._configs.get(topic)

    def all(self) -> list[TopicConfig]:
        return list(self._configs.values())

    def put(self, config: TopicConfig) -> bool:
        """Add or replace a topic. Return False if the topic existed, changed or not."""
        known = self._configs.get(config.topic)
        if known != config:
            self._configs[config.topic] = config
            self.features |= config.features
            self._changed()
            self._row_changed(config.topic)
        return known is None

    def remove(self, topic: str) -> bool:
        if self._configs.pop(topic, None) is None:
            return False
        self._changed()
        self._row_changed(topic)
        return True

    def register_all(self) -> None:
        """Register every topic again, because the permission of this broker has changed."""
        self._changed()
        self._rows_replaced()

    def head_to_json(self) -> dict[str, Any]:
        return {"dataVersion": self.version.to_json()}

    def load(self, content: dict[str, Any]) -> None:
        table = content.get(self.ROWS) or {}
        self._configs = {
            name: TopicConfig.from_json(name, config) for name, config in table.items()
        }
        self.features.update(*(config.features for config in self._configs.values()))
        self.version = DataVersion.from_json(content.get("dataVersion") or {})
        self._rows_replaced()

    # ---- the journal ----

    def rows(self) -> Mapping[str, TopicConfig]:
        return self._configs

    def name_of(self, key: str) -> str:
        return key

    def row_to_json(self, row: TopicConfig) -> dict[str, Any]:
        return row.to_json()

    def take_rows(
        self,
        put: Mapping[str, Any],
        removed: Iterable[str],
        version: DataVersion,
        *,
        anew: bool,
    ) -> None:
        configs = {name: TopicConfig.from_json(name, row) for name, row in put.items()}
        self.features.update(*(config.features for config in configs.values()))
        self._taken(version)
        if anew:
            self._configs.clear()
            self._rows_replaced()
        for topic in removed:
            self._configs.pop(topic, None)
            self._row_changed(topic)
        for topic, config in configs.items():
            self._configs[topic] = config
            self._row_changed(topic)

    def remove_row(self, topic: str) -> None:
        """Remove a topic by the journal, which has the version in a separate record."""
        if self._configs.pop(topic, None) is not None:
            self.revision += 1
            self._row_changed(topic)
