"""All leases of a broker: built from the last snapshot and the log after it. No loop.

The snapshot (`config/popLeases.json`) only makes the start fast: it says up to which queue offset
of the log it has everything. What it holds beyond that is read again, which does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aerobee_broker.delivery.pop import journal_format
from aerobee_broker.delivery.pop.in_flight import Held, QueueLeases
from aerobee_broker.metadata.table import Table
from aerobee_chassis.clock import Clock

# Lease ids begin at the time of day times this, so that they grow even when the log was lost.
_IDS_PER_MS = 1_024


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a named attempt to receive got."""

    lease_id: int
    at_ms: int
    for_ms: int
    messages: tuple[tuple[int, int], ...]  # queue id, queue offset


@dataclass(slots=True, eq=False)
class GroupLeases:
    """One group in one topic."""

    consumer_group: str
    topic: str
    queues: dict[int, QueueLeases] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    turn: int = 0  # the queue that the next pop begins with

    def key(self, queue: QueueLeases) -> tuple[str, str, int]:
        return self.consumer_group, self.topic, queue.queue_id

    def alive(self, attempt: Attempt) -> list[tuple[QueueLeases, Held]]:
        """What of an attempt is still on lease and not settled."""
        found = []
        for queue_id, offset in attempt.messages:
            queue = self.queues.get(queue_id)
            held = queue.open.get(offset) if queue else None
            if queue and held and held.leased and held.lease_id == attempt.lease_id:
                found.append((queue, held))
        return found

    def forget_attempts(self) -> None:
        """Drops the names of attempts that nothing is left of."""
        self.attempts = {name: one for name, one in self.attempts.items() if self.alive(one)}


class LeaseTable(Table):
    """`position`: the queue offset of the log up to which everything is in here. Set once the
    store is open."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.position: Callable[[], int] = lambda: 0
        self._groups: dict[tuple[str, str], GroupLeases] = {}
        self._last_id = 0
        self.loaded_position = 0

    def __iter__(self) -> Iterator[GroupLeases]:
        return iter(self._groups.values())

    def of(self, consumer_group: str, topic: str) -> GroupLeases:
        key = (consumer_group, topic)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = GroupLeases(consumer_group, topic)
        return found

    def find(
        self, consumer_group: str, topic: str, queue_id: int
    ) -> tuple[GroupLeases, QueueLeases] | None:
        group = self._groups.get((consumer_group, topic))
        queue = group.queues.get(queue_id) if group else None
        return (group, queue) if group and queue else None

    def next_lease_id(self, now_ms: int) -> int:
        self._last_id = max(self._last_id + 1, now_ms * _IDS_PER_MS)
        return self._last_id

    def touch(self) -> None:
        """There is something new to save."""
        self.revision += 1

    def forget(self, *, consumer_group: str = "", topic: str = "") -> bool:
        """Drops what a deleted group or topic had. False: nothing."""
        doomed = self.keys_of(consumer_group=consumer_group, topic=topic)
        for key in doomed:
            for queue in self._groups.pop(key).queues.values():
                queue.reset(0)  # for who still holds it
        return bool(doomed)

    def keys_of(self, *, consumer_group: str = "", topic: str = "") -> list[tuple[str, str]]:
        """(group, topic) of all that a group or a topic has here."""
        return [
            key
            for key in self._groups
            if (consumer_group and key[0] == consumer_group) or (topic and key[1] == topic)
        ]

    # ---- from the log ----

    def apply(self, entry: Mapping[str, Any]) -> None:
        """One record of the log. Raises KeyError, TypeError, ValueError when it is none."""
        match entry["kind"]:
            case "lease":
                self._apply_lease(entry)
            case "settle":
                for group, topic, queue_id, done, behind in entry["queues"]:
                    if found := self.find(group, topic, queue_id):
                        _apply_settled(found[1], done, behind)
            case "show":
                for group, topic, queue_id, *change in entry["leases"]:
                    if found := self.find(group, topic, queue_id):
                        _apply_change(found[1], *change)
            case "move":
                place, queue_id = self.of(entry["group"], entry["topic"]), entry["queue"]
                place.queues.setdefault(queue_id, QueueLeases(queue_id, 0)).reset(entry["offset"])
            case "forget":
                self.forget(consumer_group=entry["group"], topic=entry["topic"])
            case kind:
                raise ValueError(f"kind {kind} is unknown")

    def _apply_lease(self, entry: Mapping[str, Any]) -> None:
        place = self.of(entry["group"], entry["topic"])
        lease_id, at_ms, for_ms = entry["id"], entry["at"], entry["for"]
        self._last_id = max(self._last_id, lease_id)
        messages = []
        for queue_id, before, after, leased, waiting in entry["queues"]:
            queue = place.queues.get(queue_id)
            if queue is None:
                queue = place.queues[queue_id] = QueueLeases(queue_id, before)
            queue.fifo = entry["fifo"]
            queue.cursor = queue.logged = max(queue.cursor, after)
            for offset, attempt in journal_format.leased_messages(leased):
                queue.open[offset] = Held(
                    offset,
                    attempt=attempt,
                    lease_id=lease_id,
                    leased=True,
                    expires_ms=at_ms + for_ms,
                    since_ms=at_ms,
                )
                messages.append((queue_id, offset))
            for offset in waiting:
                queue.open.setdefault(offset, Held(offset))
        if entry["attempt"]:
            place.attempts[entry["attempt"]] = Attempt(lease_id, at_ms, for_ms, tuple(messages))

    # ---- snapshot ----

    def to_json(self) -> dict[str, Any]:
        for place in self:
            place.forget_attempts()
        return {
            "position": self.position(),
            "lastLeaseId": self._last_id,
            "groups": [
                {
                    "group": place.consumer_group,
                    "topic": place.topic,
                    "queues": [_queue_to_json(queue) for queue in place.queues.values()],
                    "attempts": {
                        name: [one.lease_id, one.at_ms, one.for_ms, one.messages]
                        for name, one in place.attempts.items()
                    },
                }
                for place in self
            ],
        }

    def load(self, content: dict[str, Any]) -> None:
        self._groups = {}
        self.loaded_position = int(content["position"])
        self._last_id = int(content["lastLeaseId"])
        for one in content["groups"]:
            place = self.of(one["group"], one["topic"])
            for queue in map(_queue_from_json, one["queues"]):
                place.queues[queue.queue_id] = queue
            for name, (lease_id, at_ms, for_ms, messages) in one["attempts"].items():
                pairs = tuple((queue_id, offset) for queue_id, offset in messages)
                place.attempts[name] = Attempt(lease_id, at_ms, for_ms, pairs)


def _apply_settled(queue: QueueLeases, done: list[int | list[int]], behind: list[int]) -> None:
    for offset in journal_format.settled_offsets(done):
        queue.open.pop(offset, None)
    for offset in behind:
        held = queue.open.get(offset)
        if held is not None:
            held.acked, held.leased = True, False


def _apply_change(queue: QueueLeases, offset: int, lease_id: int, *times: int) -> None:
    since_ms, for_ms, attempt, uncounted = times
    held = queue.open.get(offset)
    if held is not None and held.leased and held.lease_id == lease_id:
        held.since_ms, held.expires_ms = since_ms, since_ms + for_ms
        held.attempt, held.uncounted = attempt, bool(uncounted)


def _queue_to_json(queue: QueueLeases) -> list[Any]:
    messages = [
        [
            held.offset,
            held.attempt,
            held.lease_id,
            int(held.leased),
            int(held.acked),
            int(held.uncounted),
            held.since_ms,
            held.expires_ms,
        ]
        for held in queue
    ]
    return [queue.queue_id, queue.cursor, int(queue.fifo), messages]


def _queue_from_json(content: list[Any]) -> QueueLeases:
    queue_id, cursor, fifo, messages = content
    queue = QueueLeases(queue_id, cursor, fifo=bool(fifo))
    for offset, attempt, lease_id, leased, acked, uncounted, since_ms, expires_ms in messages:
        queue.open[offset] = Held(
            offset,
            attempt=attempt,
            lease_id=lease_id,
            leased=bool(leased),
            acked=bool(acked),
            uncounted=bool(uncounted),
            since_ms=since_ms,
            expires_ms=expires_ms,
        )
    return queue
