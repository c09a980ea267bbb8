"""The queue locks of a broker in memory. They end by unlocking, or when a test breaks them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from aerobee.broker.v1 import client_pb2

from aerobee_wire.status import Code, MqError

# Consumer group, topic, queue id.
LockedQueue = tuple[str, str, int]


class MemoryLocks:
    """`broken`: locks that ended otherwise than by their holder, and the holder."""

    def __init__(self) -> None:
        self.held: dict[LockedQueue, tuple[str, int]] = {}  # client id, epoch
        self.broken: list[tuple[LockedQueue, str]] = []
        self._epoch = 0

    def lock(self, request: Any) -> list[client_pb2.QueueLock]:
        return [self._lock(key, request.client_id) for key in _keys(request)]

    def _lock(self, key: LockedQueue, client_id: str) -> client_pb2.QueueLock:
        if key not in self.held:
            self._epoch += 1
            self.held[key] = (client_id, self._epoch)
        holder, epoch = self.held[key]
        return client_pb2.QueueLock(client_id=holder, epoch=epoch if holder == client_id else 0)

    def unlock(self, request: Any) -> None:
        for key in _keys(request):
            if self.held.get(key, ("", 0))[0] == request.client_id:
                del self.held[key]

    def give(self, key: LockedQueue, client_id: str) -> None:
        """Another client takes the lock, whoever has it."""
        self.break_all()
        self._lock(key, client_id)

    def break_all(self, client_id: str | None = None) -> None:
        """Those of a client, or of all."""
        for key, (holder, _) in list(self.held.items()):
            if client_id in {None, holder}:
                self.broken.append((key, holder))
                del self.held[key]

    def check(self, request: Any, queue: Any) -> None:
        """Raises QUEUE_LOCK_NOT_HELD as a broker does."""
        holder, _ = self.held.get((request.consumer_group, queue.topic, queue.queue_id), ("", 0))
        if holder != request.client_id and (holder or request.locked):
            raise MqError(Code.QUEUE_LOCK_NOT_HELD, f"{holder or 'nobody'} holds the lock")


class LockRpcs(ABC):
    """LockQueues and UnlockQueues of a cluster in memory."""

    @abstractmethod
    def notify_group(self, broker: Any, consumer_group: str) -> None: ...

    def _LockQueues(self, broker: Any, request: Any) -> Any:
        if request.client_id not in broker.members(request.consumer_group):
            raise MqError(Code.CONSUMER_NOT_ONLINE, f"{request.client_id} is no member")
        return client_pb2.LockQueuesResponse(
            locks=broker.locks.lock(request), max_reconsume_times=broker.max_reconsume_times
        )

    def _UnlockQueues(self, broker: Any, request: Any) -> Any:
        broker.locks.unlock(request)
        self.notify_group(broker, request.consumer_group)
        return client_pb2.UnlockQueuesResponse()


def _keys(request: Any) -> list[LockedQueue]:
    group = request.consumer_group
    return [(group, queue.topic, queue.queue_id) for queue in request.queues]
