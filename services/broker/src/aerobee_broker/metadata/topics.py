"""The topics of this broker: `topics.json`. Their configuration, not their messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aerobee_broker.metadata.config_table import ConfigTable
from aerobee_broker.store.format import LITE_TOPICS, SHRUNK_TOPICS
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
    def name(self) -> str:
        return self.topic

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


class Topics(ConfigTable[TopicConfig]):
    ROWS = "topicConfigTable"
    config_from_json = TopicConfig.from_json

    def register_all(self) -> None:
        """Register every topic again, because the permission of this broker has changed."""
        self._changed()
        self._rows_replaced()

    def remove_row(self, topic: str) -> None:
        """Remove a topic by the journal, which has the version in a separate record."""
        if self._configs.pop(topic, None) is not None:
            self.revision += 1
            self._row_changed(topic)
