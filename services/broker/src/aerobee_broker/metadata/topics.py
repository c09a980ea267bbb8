"""The configurations of the topics of this broker, which are stored in `topics.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aerobee_broker.metadata.config_table import ConfigTable
from aerobee_broker.store.format import LITE_TOPICS, SHRUNK_TOPICS, TOPIC_TIMES
from aerobee_broker.store.options import HOUR_MS
from aerobee_broker.store.retention.topic_times import TopicTime
from aerobee_chassis.clock import Clock
from aerobee_wire.properties import whole_number
from aerobee_wire.queues.lite import LITE
from aerobee_wire.route import READ, READ_WRITE, WRITE

PRIORITY = 8

MESSAGE_TYPE = "message.type"  # name of an attribute
RESERVE_TIME = "reserve.time"  # name of an attribute: hours, or -1
UNSPECIFIED = "UNSPECIFIED"  # value of this attribute until a message states its type


@dataclass(frozen=True, slots=True)
class TopicConfig:
    topic: str
    read_queue_count: int
    write_queue_count: int
    permission: int = READ_WRITE
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    # Number of queues before the topic was shrunk, or 0 if it was not. Messages in the queues that
    # were removed are unreadable by intent.
    shrunk_from: int = 0
    # Store time (ms since the epoch): older messages expired before the retention time of the topic
    # was raised or removed, and stay expired. 0 if it was not.
    expired_before_ms: int = 0
    # The retention time (ms) of a retry topic without one of its own, from the topics that its
    # group consumes. 0 if it is that of the broker.
    inherited_ms: int = 0

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
        """The message type of the topic, or "" if the topic does not have one."""
        return self.attributes.get(MESSAGE_TYPE, "")

    @property
    def reserved_ms(self) -> int | None:
        """The retention time of the topic in ms, or None if it is that of the broker."""
        hours = whole_number(self.attributes.get(RESERVE_TIME, ""))
        if hours is not None and hours > 0:
            return hours * HOUR_MS
        return self.inherited_ms or None

    @property
    def time(self) -> TopicTime | None:
        """The retention of the topic, or None if only the options of the broker apply."""
        reserved_ms = self.reserved_ms
        if reserved_ms is None and not self.expired_before_ms:
            return None
        return TopicTime(reserved_ms, self.expired_before_ms)

    def changed_from(self, known: TopicConfig, now_ms: int) -> TopicConfig:
        """Return this configuration as the successor of `known`.

        A longer retention time applies to the messages that are readable when it is set. The
        others have expired for good, so the result has the store time of the last of them.
        """
        before, after = known.reserved_ms, self.reserved_ms
        expired_before_ms = known.expired_before_ms
        if before is not None and (after is None or after > before):
            expired_before_ms = max(expired_before_ms, now_ms - before)
        return replace(self, expired_before_ms=expired_before_ms)

    def inheriting(self, reserved_ms: int | None, now_ms: int) -> TopicConfig:
        """Return a copy that inherits this retention time from the topics of its group."""
        return replace(self, inherited_ms=reserved_ms or 0).changed_from(self, now_ms)

    @property
    def by_priority(self) -> bool:
        """Return whether the queue id is a priority, so that higher ids are popped first."""
        return self.message_type == "PRIORITY"

    @property
    def features(self) -> set[str]:
        """Return the format features (`store/format.py`) that this topic uses."""
        found = {LITE_TOPICS} if self.message_type == LITE else set()
        if self.shrunk_from:
            found.add(SHRUNK_TOPICS)
        if self.time is not None:
            found.add(TOPIC_TIMES)
        return found

    @property
    def queue_count(self) -> int:
        """The number of existing queues: the higher of the read and the write queue count."""
        return max(self.read_queue_count, self.write_queue_count)

    def readable_queue(self, queue_id: int) -> int:
        """Return the queue for a message that was sent to `queue_id` and is delivered now.

        If the topic has fewer read queues by now, consumers would not get the message there.
        """
        count = max(1, self.read_queue_count)
        if queue_id < count:
            return queue_id
        return count - 1 if self.by_priority else queue_id % count

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
            # Keys that RocketMQ does not have.
            **({"shrunkFrom": self.shrunk_from} if self.shrunk_from else {}),
            **({"expiredBefore": self.expired_before_ms} if self.expired_before_ms else {}),
            **({"inheritedTime": self.inherited_ms} if self.inherited_ms else {}),
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
            expired_before_ms=int(content.get("expiredBefore", 0)),
            inherited_ms=int(content.get("inheritedTime", 0)),
        )


class Topics(ConfigTable[TopicConfig]):
    ROWS = "topicConfigTable"
    config_from_json = TopicConfig.from_json

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._times: dict[str, TopicTime] = {}
        self.times_revision = 0  # of `times`

    @property
    def times(self) -> Mapping[str, TopicTime]:
        """The retention times of the topics that have their own, by topic. Few topics have one."""
        return self._times

    def _row_changed(self, key: str) -> None:
        super()._row_changed(key)
        config = self._configs.get(key)
        time = None if config is None else config.time
        if time == self._times.get(key):
            return
        if time is None:
            del self._times[key]
        else:
            self._times[key] = time
        self.times_revision += 1

    def _rows_replaced(self) -> None:
        super()._rows_replaced()
        times = {config.topic: config.time for config in self._configs.values()}
        self._times = {topic: time for topic, time in times.items() if time is not None}
        self.times_revision += 1

    def register_all(self) -> None:
        """Count every topic as changed, because the permission of this broker has changed.

        The broker then registers all topics again.
        """
        self._changed()
        self._rows_replaced()

    def remove_row(self, topic: str) -> None:
        """Remove a topic that a journal record deletes, without a new data version.

        A separate journal record has the new version.
        """
        if self._configs.pop(topic, None) is not None:
            self.revision += 1
            self._row_changed(topic)
