"""The consumer offsets of each group in each message queue, stored in `consumerOffset.json`.

A commit overwrites the offset, even with a lower one. The file is written every few seconds. A
crash loses the last commits, so the messages of these commits are redelivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aerobee_broker.metadata.offset_history import RESET, Mover, OffsetHistory
from aerobee_broker.metadata.table import DataVersion, JournalledTable
from aerobee_chassis.clock import Clock

_COMMITS_PER_VERSION = 500
_SEPARATOR = "@"  # legal names do not contain it
# Twice the longest long poll, because a running consumer pulls within this time.
RESET_HOLDS_MS = 60_000
UNKNOWN_RESET = Mover("", RESET)


class ConsumerOffsets(JournalledTable):
    """Stores the queue offset of the next message for each group, topic and queue.

    A reset of an offset also leaves a mark. While the mark exists, commits of the group are
    ignored, because they would overwrite the reset. The next pull receives the new offset and
    removes the mark. The mark expires after a minute, because some groups commit without pulls.

    `history` records the moves whose mover is given.
    """

    ROWS = "offsetTable"

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        # queue id → offset, and the time (monotonic, ms) at which the mark expires
        self._resets: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}
        self._commits = 0
        self.history = OffsetHistory(clock.now_ms())

    def get(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        return self._offsets.get((topic, consumer_group), {}).get(queue_id)

    def of(self, consumer_group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets of a group in a topic, as a map from queue id to queue offset."""
        return self._offsets.get((topic, consumer_group), {})

    def topics_of(self, consumer_group: str) -> list[str]:
        return sorted(topic for topic, group in self._offsets if group == consumer_group)

    def groups_of(self, topic: str) -> set[str]:
        return {group for its_topic, group in self._offsets if its_topic == topic}

    def begun(self) -> set[str]:
        """Return the topics in which at least one group has an offset above 0."""
        return {topic for (topic, _), queues in self._offsets.items() if any(queues.values())}

    def commit(
        self,
        consumer_group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        mover: Mover | None = None,
    ) -> None:
        key = (topic, consumer_group)
        if self._resets and self._is_marked(key, queue_id):
            return
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
        before = queues.get(queue_id)
        if before != queue_offset:
            if mover is not None:
                moved = consumer_group, topic, queue_id
                self.history.note(moved, before, queue_offset, mover, self._clock.now_ms())
            queues[queue_id] = queue_offset
            self._committed(key)

    def begin(
        self, consumer_group: str, topic: str, queue_id: int, queue_offset: int, client_id: str
    ) -> None:
        """Record in the history where a group without an offset begins to pull."""
        if self.get(consumer_group, topic, queue_id) is None:
            key = consumer_group, topic, queue_id
            self.history.begin(key, queue_offset, client_id, self._clock.now_ms())

    def reset(
        self,
        consumer_group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        mover: Mover = UNKNOWN_RESET,
    ) -> None:
        """Set the offset of a group. Until its next pull, commits of the group are ignored."""
        key = (topic, consumer_group)
        queues = self._offsets.setdefault(key, {})
        moved, before = (consumer_group, topic, queue_id), queues.get(queue_id)
        self.history.note(moved, before, queue_offset, mover, self._clock.now_ms())
        queues[queue_id] = queue_offset
        until_ms = self._clock.monotonic_ms() + RESET_HOLDS_MS
        self._resets.setdefault(key, {})[queue_id] = (queue_offset, until_ms)
        self._committed(key)

    def take_reset(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a reset and remove its mark, or None without a mark."""
        if not self._resets or not self._is_marked((topic, consumer_group), queue_id):
            return None
        return self._unmark((topic, consumer_group), queue_id)

    def _is_marked(self, key: tuple[str, str], queue_id: int) -> bool:
        mark = self._resets.get(key, {}).get(queue_id)
        if mark is not None and mark[1] <= self._clock.monotonic_ms():
            self._unmark(key, queue_id)
            return False
        return mark is not None

    def _unmark(self, key: tuple[str, str], queue_id: int) -> int:
        offset, _ = self._resets[key].pop(queue_id)
        if not self._resets[key]:
            del self._resets[key]
        return offset

    def remove(self, consumer_group: str, topic: str) -> None:
        """Remove the offsets of a group that has left the topic."""
        key = (topic, consumer_group)
        self._remove([key] if key in self._offsets else [])

    def remove_topic(self, topic: str) -> None:
        self._remove([key for key in self._offsets if key[0] == topic])

    def remove_group(self, consumer_group: str) -> None:
        self._remove([key for key in self._offsets if key[1] == consumer_group])

    def head_to_json(self) -> dict[str, Any]:
        return {"dataVersion": self.version.to_json()}

    def load(self, content: dict[str, Any]) -> None:
        self._offsets = {}
        for name, queues in (content.get(self.ROWS) or {}).items():
            if _SEPARATOR in name:
                self._offsets[_key_of(name)] = _row_of(queues)
        self.version = DataVersion.from_json(content.get("dataVersion") or {})
        self._rows_replaced()

    # ---- the journal ----

    def rows(self) -> Mapping[tuple[str, str], Mapping[int, int]]:
        return self._offsets

    def name_of(self, key: tuple[str, str]) -> str:
        topic, consumer_group = key
        return f"{topic}{_SEPARATOR}{consumer_group}"

    def row_to_json(self, row: Mapping[int, int]) -> dict[str, int]:
        return {str(queue): at for queue, at in row.items()}

    def take_rows(
        self,
        put: Mapping[str, Any],
        removed: Iterable[str],
        version: DataVersion,
        *,
        anew: bool,
    ) -> None:
        rows = {_key_of(name): _row_of(queues) for name, queues in put.items()}
        gone = [_key_of(name) for name in removed]
        self._take(self._offsets, rows, gone, version, anew=anew)

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        if keys:
            self._changed()
        for key in keys:
            del self._offsets[key]
            self._resets.pop(key, None)
            self._row_changed(key)
        self.history.forget({(consumer_group, topic) for topic, consumer_group in keys})

    def _committed(self, key: tuple[str, str]) -> None:
        """Count a changed offset. As in RocketMQ, only every 500th one makes a new data version."""
        self.revision += 1
        self._row_changed(key)
        self._commits += 1
        if self._commits % _COMMITS_PER_VERSION == 0:
            self.version = self.version.next(self._clock.now_ms())


def _key_of(name: str) -> tuple[str, str]:
    topic, separator, group = name.partition(_SEPARATOR)
    if not separator:
        raise ValueError(f"{name!r} names no topic and group")
    return topic, group


def _row_of(queues: Mapping[str, Any]) -> dict[int, int]:
    return {int(queue): int(at) for queue, at in queues.items()}
