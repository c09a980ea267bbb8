"""Queues of lite topics that have messages to deliver, one queue for each client of a group.

The next receives of a client get messages of the lite topics in its queue. A lite topic is in the
queue of one client at a time, and only once. A busy lite topic is therefore served after all others
in the queue, and the queue needs no limit. This module does not use messages or offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee_broker.delivery.lite.subscriptions import LiteClient
from aerobee_chassis.rpc.call_times import begin_wait


class ReadyLine(NamedTuple):
    queue_id: int
    code: int


@dataclass(slots=True, eq=False)
class _ClientQueue:
    lines: dict[ReadyLine, None] = field(default_factory=dict)
    waiting: dict[asyncio.Future[bool], None] = field(default_factory=dict)
    asked: bool = True  # the client has received since the last call of `stuck`
    interrupted: bool = False  # the next receive returns without waiting


class ReadyLines:
    """The queues of lite topics that have messages to deliver, by consumer group and client.

    A ReadyLine is a lite topic in one queue of its parent topic.
    """

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, _ClientQueue]] = {}
        # Group → lite topic → id of the client whose queue contains it.
        self._owners: dict[str, dict[ReadyLine, str]] = {}
        self.closed = False

    def count(self, consumer_group: str, client_id: str) -> int:
        """Return the number of lite topics in the queue of a client."""
        queue = self._queues.get(consumer_group, {}).get(client_id)
        return len(queue.lines) if queue is not None else 0

    def offer(
        self, consumer_group: str, line: ReadyLine, holders: Mapping[str, LiteClient]
    ) -> None:
        """Put a lite topic into the queue of one subscribed client, and wake one of its receives.

        Prefers a client with a waiting receive, and then the client with the shortest queue.
        """
        owners = self._owners.setdefault(consumer_group, {})
        owner = owners.get(line)
        if owner is not None and owner in holders:
            self._wake(self._queue(consumer_group, owner))
            return
        if owner is not None:
            self._queue(consumer_group, owner).lines.pop(line, None)
            del owners[line]
        if not holders:
            return
        if len(holders) == 1:
            chosen = next(iter(holders))
        else:
            chosen = min(holders, key=lambda client_id: self._load(consumer_group, client_id))
        queue = self._queue(consumer_group, chosen)
        queue.lines[line] = None
        owners[line] = chosen
        self._wake(queue)

    def take(self, consumer_group: str, client_id: str) -> ReadyLine | None:
        """Remove and return the first lite topic of a client's queue, or None if it is empty."""
        queue = self._queues.get(consumer_group, {}).get(client_id)
        if queue is None:
            return None
        queue.asked = True
        if not queue.lines:
            return None
        line = next(iter(queue.lines))
        del queue.lines[line]
        self._owners[consumer_group].pop(line, None)
        return line

    async def wait(self, consumer_group: str, client_id: str, timeout_s: float) -> bool:
        """Wait until the queue of a client contains a lite topic.

        Returns True if the caller must check the queue. Returns False after the timeout, after
        `interrupt`, or if the broker stops.
        """
        if self.closed:
            return False
        queue = self._queue(consumer_group, client_id)
        if queue.lines:
            return True
        if queue.interrupted:
            queue.interrupted = False
            self._drop_unused(consumer_group, client_id)
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        queue.waiting[future] = None
        begin_wait()
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except (TimeoutError, asyncio.CancelledError) as error:
            if future.done() and not future.cancelled():
                self._wake(queue)  # this receive was woken, but does not use the lite topic
            if isinstance(error, TimeoutError):
                return False
            raise
        finally:
            queue.waiting.pop(future, None)
            self._drop_unused(consumer_group, client_id)

    def _drop_unused(self, consumer_group: str, client_id: str) -> None:
        """Remove the queue of a client if it is empty and no receive waits.

        If the client has left already, the queue would not be removed otherwise.
        """
        queues = self._queues.get(consumer_group, {})
        queue = queues.get(client_id)
        if queue is None or queue.lines or queue.waiting or queue.interrupted:
            return
        del queues[client_id]
        if not queues:
            del self._queues[consumer_group]
            self._owners.pop(consumer_group, None)

    def interrupt(self, consumer_group: str, client_id: str) -> None:
        """End one receive of a client, so that its response can contain a notification.

        Ends a waiting receive, or else the next one that would wait.
        """
        queue = self._queue(consumer_group, client_id)
        for future in queue.waiting:
            if not future.done():
                future.set_result(False)
                return
        queue.interrupted = True

    def leave(self, consumer_group: str, client_id: str) -> list[ReadyLine]:
        """Remove a client, end its waiting receives, and return the lite topics in its queue."""
        queue = self._queues.get(consumer_group, {}).pop(client_id, None)
        if queue is None:
            return []
        for future in queue.waiting:
            _end(future, False)
        owners = self._owners.get(consumer_group, {})
        for line in queue.lines:
            owners.pop(line, None)
        if not self._queues[consumer_group]:
            del self._queues[consumer_group]
            self._owners.pop(consumer_group, None)
        return list(queue.lines)

    def withdraw(self, consumer_group: str, client_id: str, line: ReadyLine) -> bool:
        """Remove a lite topic from the queue of a client; return whether the queue contained it."""
        queue = self._queues.get(consumer_group, {}).get(client_id)
        if queue is None or line not in queue.lines:
            return False
        del queue.lines[line]
        self._owners[consumer_group].pop(line, None)
        return True

    def discard(self, consumer_groups: Iterable[str], line: ReadyLine) -> None:
        """Remove a lite topic without messages from the queues of all given groups."""
        for consumer_group in consumer_groups:
            owner = self._owners.get(consumer_group, {}).pop(line, None)
            if owner is not None:
                self._queue(consumer_group, owner).lines.pop(line, None)

    def stuck(self) -> list[tuple[str, str, list[ReadyLine]]]:
        """Return the queues of clients that have not received since the last call.

        Each queue is given as (group, client id, lite topics). Clients with a waiting receive are
        left out. The lite topics stay in their queues.
        """
        found = []
        for consumer_group, queues in self._queues.items():
            for client_id, queue in queues.items():
                if queue.lines and not queue.asked and not queue.waiting:
                    found.append((consumer_group, client_id, list(queue.lines)))
                queue.asked = False
        return found

    def close(self) -> None:
        """End all waiting receives, and let later ones return at once."""
        self.closed = True
        for group in self._queues.values():
            for queue in group.values():
                for future in queue.waiting:
                    _end(future, False)

    def _queue(self, consumer_group: str, client_id: str) -> _ClientQueue:
        return self._queues.setdefault(consumer_group, {}).setdefault(client_id, _ClientQueue())

    def _load(self, consumer_group: str, client_id: str) -> int:
        queue = self._queues.get(consumer_group, {}).get(client_id)
        if queue is None:
            return 0
        return len(queue.lines) - sum(not future.done() for future in queue.waiting)

    @staticmethod
    def _wake(queue: _ClientQueue) -> None:
        for future in queue.waiting:
            if not future.done():
                future.set_result(True)
                return


def _end(future: asyncio.Future[bool], found: bool) -> None:
    if not future.done():
        future.set_result(found)
