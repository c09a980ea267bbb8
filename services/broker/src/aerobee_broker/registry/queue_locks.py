"""Lock message queues, so that one member of a consumer group consumes a queue at a time.

With locks, the group consumes a queue in order. A lock ends LOCK_MS after its holder last asked for
it, or at once when the holder leaves the group. Locks are in memory only; after a restart the
members lock again. This is RocketMQ's REBALANCE LOCK with a fence: `check` refuses requests of
other clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aerobee_broker.errors import NotAMember, QueueLockNotHeld
from aerobee_broker.registry.clients import Clients
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_chassis.clock import Clock

LOCK_MS = 60_000

# Topic and queue id.
Queue = tuple[str, int]


@dataclass(slots=True)
class _Lock:
    """A lock on a queue.

    `epoch` identifies the period of this holder. `asked_ms` is the monotonic time of the holder's
    last request. `refused` contains the clients that asked for the lock meanwhile.
    """

    client_id: str
    epoch: int
    asked_ms: int
    refused: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a queue.

    `client_id` is "" if the queue does not exist. `epoch` is 0 if the holder is not the client that
    asked.
    """

    client_id: str
    epoch: int


class QueueLocks:
    def __init__(self, clients: Clients, topics: TopicRegistry, clock: Clock) -> None:
        self._clients = clients
        self._topics = topics
        self._clock = clock
        self._locks: dict[str, dict[Queue, _Lock]] = {}  # by consumer group
        self._last_epoch = 0
        clients.on_leave(self._left)

    def lock(self, consumer_group: str, client_id: str, queues: Iterable[Queue]) -> list[Holder]:
        """Lock the free queues and renew the locks of `client_id`; return each queue's holder.

        Raises NotAMember.
        """
        if not self._clients.is_member(consumer_group, client_id):
            raise NotAMember(consumer_group, client_id)
        locks = self._locks.setdefault(consumer_group, {})
        now_ms = self._clock.monotonic_ms()
        return [self._lock(locks, queue, client_id, now_ms) for queue in queues]

    def _lock(self, locks: dict[Queue, _Lock], queue: Queue, client_id: str, now_ms: int) -> Holder:
        if not self._topics.is_readable(*queue):
            return Holder("", 0)
        lock = locks.get(queue)
        if lock is not None and lock.client_id == client_id:
            lock.asked_ms = now_ms
        elif lock is not None and not _is_over(lock, now_ms):
            lock.refused.add(client_id)
            return Holder(lock.client_id, 0)
        else:
            # The epoch is at least the wall-clock time, so that it does not repeat after a restart.
            self._last_epoch = max(self._last_epoch + 1, self._clock.now_ms())
            lock = locks[queue] = _Lock(client_id, self._last_epoch, now_ms)
        return Holder(client_id, lock.epoch)

    def unlock(self, consumer_group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Free the locks that `client_id` holds on these queues, and notify the refused clients."""
        locks = self._locks.get(consumer_group, {})
        refused: set[str] = set()
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                refused |= lock.refused
                del locks[queue]
        if not locks:
            self._locks.pop(consumer_group, None)
        for waiting in refused:
            self._clients.notify_member(consumer_group, waiting)

    def check(
        self, consumer_group: str, topic: str, queue_id: int, client_id: str, *, locked: bool
    ) -> None:
        """Check that a client may access a queue.

        Raises QueueLockNotHeld if another client holds the lock. If `locked` is True, it also
        raises the error if no client holds the lock.
        """
        locks = self._locks.get(consumer_group)
        if locks is None and not locked:
            return
        lock = locks.get((topic, queue_id)) if locks else None
        if lock is None:
            holder = ""
        elif lock.client_id == client_id:
            return
        else:
            holder = "" if _is_over(lock, self._clock.monotonic_ms()) else lock.client_id
        if holder or locked:
            raise QueueLockNotHeld(consumer_group, topic, queue_id, holder)

    def holders(self, consumer_group: str) -> Mapping[Queue, str]:
        """Return a map from (topic, queue id) to the client that holds the lock."""
        now_ms = self._clock.monotonic_ms()
        return {
            queue: lock.client_id
            for queue, lock in self._locks.get(consumer_group, {}).items()
            if not _is_over(lock, now_ms)
        }

    def _left(self, consumer_group: str, client_id: str) -> None:
        self.unlock(consumer_group, client_id, list(self._locks.get(consumer_group, ())))


def _is_over(lock: _Lock, now_ms: int) -> bool:
    return now_ms - lock.asked_ms >= LOCK_MS
