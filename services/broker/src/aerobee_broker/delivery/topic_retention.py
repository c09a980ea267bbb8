"""Gives the store the retention times of topics, from the settings of the topics.

The retry topic of a group keeps a message as long as the topic with the longest time that the group
consumes, because the retry topic has messages of all of them. It can have a time of its own, like
each other topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.retention.topic_times import TopicTime
from aerobee_wire import topics as names

_REFRESH_MS = 60_000  # a group consumes another topic: its retry topic follows after this time
_JOURNALS = (names.SCHEDULE_TOPIC, names.HALF_TOPIC, names.OP_HALF_TOPIC)


@dataclass(slots=True, eq=False)
class TopicRetention:
    """The retention times of the topics of one store. A master and a slave use it alike."""

    store: MessageStore
    topics: Topics
    offsets: ConsumerOffsets
    _revision: int = field(default=-1, init=False)  # of `topics`, at the last refresh
    _next_ms: int = field(default=0, init=False)
    _has_times: bool = field(default=False, init=False)

    def restore(self, now_ms: int) -> None:
        """Expire messages before the first read."""
        self.refresh(now_ms)
        self.store.topic_times.expire_all(now_ms)

    def refresh(self, now_ms: int) -> None:
        """Give the store the times, if they may have changed. Call it once a second."""
        is_due = self._has_times and now_ms >= self._next_ms
        if self._revision == self.topics.revision and not is_due:
            return
        self._revision, self._next_ms = self.topics.revision, now_ms + _REFRESH_MS
        configs = self.topics.all()
        times = {
            config.topic: TopicTime(config.reserved_ms, config.expired_before_ms)
            for config in configs
            if (config.reserved_ms is not None or config.expired_before_ms)
            and not _is_journal(config.topic)
        }
        self._has_times = bool(times)
        if times:
            times = self._of_retries(times, configs) | times
        journals = [config.topic for config in configs if _is_journal(config.topic)]
        self.store.topic_times.use(times, journals)

    def _of_retries(
        self, times: Mapping[str, TopicTime], configs: list[TopicConfig]
    ) -> dict[str, TopicTime]:
        """Return retry topic → time, for groups all of whose topics have times of their own."""
        consumed: dict[str, list[str]] = {}
        for topic, group in self.offsets.rows():
            if names.group_of(topic) is None:
                consumed.setdefault(group, []).append(topic)
        found: dict[str, TopicTime] = {}
        for config in configs:
            if not names.is_retry(config.topic):
                continue
            topics = consumed.get(names.group_of(config.topic) or "", [])
            reserved = [times[topic].reserved_ms for topic in topics if topic in times]
            known = [each for each in reserved if each is not None]
            if topics and len(known) == len(topics):
                found[config.topic] = TopicTime(max(known))
        return found


def _is_journal(topic: str) -> bool:
    """Return whether the broker itself reads a topic, and protects the part that it needs.

    The journal of dead letters does not protect any, so it keeps files like a topic of users.
    """
    is_own = topic in _JOURNALS or topic.startswith(names.SYSTEM_PREFIX)
    return is_own and topic != names.LETTER_JOURNAL_TOPIC
