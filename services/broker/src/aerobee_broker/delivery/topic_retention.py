"""Gives the store the retention times of topics, from the settings of the topics.

The retry topic of a group keeps a message as long as the topic with the longest time that the group
consumes, because the retry topic has messages of all of them. It can have a time of its own, like
each other topic. The row of the retry topic has the time. So a restart and each replica use the
same time, and a master sees when it grows or ends: what has expired by then stays expired.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.topics import Topics
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire import topics as names

_INHERIT_MS = 60_000  # a group consumes another topic: its retry topic follows after this time
_SLICE = 1_000  # rows examined before other work runs: about 0.5 ms
_JOURNALS = (names.SCHEDULE_TOPIC, names.HALF_TOPIC, names.OP_HALF_TOPIC)


@dataclass(slots=True, eq=False)
class TopicRetention:
    """The retention times of the topics of one store. A master and a slave use it alike."""

    store: MessageStore
    topics: Topics
    offsets: ConsumerOffsets
    # Revisions of the times of `topics`: those that the store uses, and those last inherited.
    _used: int = field(default=-1, init=False)
    _inherited: int = field(default=-1, init=False)
    _next_ms: int = field(default=0, init=False)
    # Until now, the store has expired messages by the time of the last refresh.
    _expires_ms: int = field(default=0, init=False)

    def restore(self, now_ms: int) -> None:
        """Expire messages before the first read."""
        self.refresh(now_ms)
        self.store.topic_times.expire_all(now_ms)

    def refresh(self, now_ms: int) -> None:
        """Give the store the times, if they have changed, before it expires messages at `now_ms`.

        Call it once a second.
        """
        self._expires_ms = now_ms
        if self._used == self.topics.times_revision:
            return
        self._used = self.topics.times_revision
        times = self.topics.times
        self.store.topic_times.use(
            {topic: time for topic, time in times.items() if not _is_journal(topic)}, _is_journal
        )

    async def inherit(self, now_ms: int) -> None:
        """Give the retry topics the times of the topics that their groups consume.

        Only a master does so. Call it once a second, before `refresh`.
        """
        times, revision = self.topics.times, self.topics.times_revision
        if not times or (self._inherited == revision and now_ms < self._next_ms):
            return
        self._inherited, self._next_ms = revision, now_ms + _INHERIT_MS
        if all(time.reserved_ms is None for time in times.values()):
            return
        longest = await self._longest()
        before = (topic for topic in times if names.is_retry(topic))
        retries = dict.fromkeys([*before, *map(names.retry_topic, longest)])
        for number, topic in enumerate(retries, 1):
            config = self.topics.get(topic)
            if config is not None:
                reserved_ms = longest.get(names.group_of(topic) or "")
                self.topics.put(config.inheriting(reserved_ms, self._expires_ms))
            if number % _SLICE == 0:
                await asyncio.sleep(0)

    async def _longest(self) -> dict[str, int | None]:
        """Return group → longest time (ms) of its topics, or None if one does not have a time."""
        found: dict[str, int | None] = {}
        for number, (topic, group) in enumerate(list(self.offsets.rows()), 1):
            if names.group_of(topic) is None:
                time = None if _is_journal(topic) else self.topics.times.get(topic)
                reserved_ms = None if time is None else time.reserved_ms
                longest_ms = found.get(group, 0)
                if reserved_ms is None or longest_ms is None:
                    found[group] = None
                else:
                    found[group] = max(reserved_ms, longest_ms)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        return found


def _is_journal(topic: str) -> bool:
    """Return whether the broker itself reads a topic, and protects the part that it needs.

    The journal of dead letters does not protect any, so it keeps files like a topic of users.
    """
    is_own = topic in _JOURNALS or topic.startswith(names.SYSTEM_PREFIX)
    return is_own and topic != names.LETTER_JOURNAL_TOPIC
