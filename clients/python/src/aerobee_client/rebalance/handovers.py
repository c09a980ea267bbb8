"""Message queues that this member is to consume and another member has not released yet: how long
it waits for them. Pure; knows no network.

The one before commits its offset when it learns of the rebalance, within a second. One that does
not, because it hangs or is older than these handovers, is waited for no longer than WAIT_MS.
"""

from __future__ import annotations

from collections.abc import Collection

from aerobee_client.message_queue import MessageQueue
from aerobee_client.runtime.clock import Clock

WAIT_MS = 2_000


class Handovers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: dict[MessageQueue, int] = {}

    def awaits(self, queue: MessageQueue) -> bool:
        """Return whether to wait for the release of `queue`: not later than WAIT_MS after the first
        call."""
        now_ms = self._clock.monotonic_ms()
        return now_ms - self._since_ms.setdefault(queue, now_ms) < WAIT_MS

    def end(self, queue: MessageQueue) -> None:
        self._since_ms.pop(queue, None)

    def end_others(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Wait for those of `topic` only that are among `queues`."""
        for queue in list(self._since_ms):
            if queue.topic == topic and queue not in queues:
                self.end(queue)
