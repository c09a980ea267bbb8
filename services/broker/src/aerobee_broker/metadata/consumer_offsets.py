"""The consumer offset of each group in each message queue: `consumerOffset.json`.

A commit overwrites the offset, also with a lower one. The file is written every few seconds: a
crash loses the last commits, and those messages are redelivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aerobee_broker.metadata.table import DataVersion, JournalledTable
from aerobee_chassis.clock import Clock

_COMMITS_PER_VERSION = 500
_SEPARATOR = "@"  # legal names do not contain it
# Twice the longest long poll: a running consumer has pulled within this time.
RESET_HOLDS_MS = 60_000


class ConsumerOffsets(JournalledTable):
    """(topic, consumer group) → queue id → queue offset of the next message to consume.

    A reset also leaves a mark. Commits of the consumer are ignored until its next pull returns the
    reset, because a commit under way would overwrite it. The mark expires after a minute, because a
    group that commits without pulling never receives the reset.
    """

    ROWS = "offsetTable"

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        # queue id → offset, and the time (monotonic, ms) at which the mark expires
        self._resets: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}
        self._commits = 0

    def get(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        return self._offsets.get((topic, consumer_group), {}).get(queue_id)

    def of(self, consumer_group: str, topic: str) -> Mapping[int, int]:
        """Return queue id → queue offset."""
        return self._offsets.get((topic, consumer_group), {})

    def topics_of(self, consumer_group: str) -> list[str]:
        return sorted(topic for topic, group in self._offsets if group == consumer_group)

    def begun(self) -> set[str]:
        """Return the topics of which any group has consumed a message."""
        return {topic for (topic, _), queues in self._offsets.items() if any(queues.values())}

    def commit(self, consumer_group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        key = (topic, consumer_group)
        if self._resets and self._is_marked(key, queue_id):
            return
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
        if queues.get(queue_id) != queue_offset:
            queues[queue_id] = queue_offset
            self._committed(key)

    def reset(self, consumer_group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Move the group. Commits of a running consumer before its next pull are ignored."""
        key = (topic, consumer_group)
        self._offsets.setdefault(key, {})[queue_id] = queue_offset
        until_ms = self._clock.monotonic_ms() + RESET_HOLDS_MS
        self._resets.setdefault(key, {})[queue_id] = (queue_offset, until_ms)
        self._committed(key)

    def take_reset(self, consumer_group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset that the queue was reset to, once; None if the mark is missing."""
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

    def _committed(self, key: tuple[str, str]) -> None:
        """Count a commit. As in RocketMQ, hundreds of commits are one data version."""
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
