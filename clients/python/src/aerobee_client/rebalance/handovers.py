"""Limit how long this member waits for queues that another member has not released yet. Pure.

The previous owner commits its offset when it learns of the rebalance, within a second. It may not
do so, because it hangs or is older than these handovers. The wait therefore ends after WAIT_MS.
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
        """Return whether to wait for the release of `queue`, up to WAIT_MS after the first call."""
        now_ms = self._clock.monotonic_ms()
        return now_ms - self._since_ms.setdefault(queue, now_ms) < WAIT_MS

    def end(self, queue: MessageQueue) -> None:
        self._since_ms.pop(queue, None)

    def end_others(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """End the waits for queues of `topic` that are not in `queues`."""
        for queue in list(self._since_ms):
            if queue.topic == topic and queue not in queues:
                self.end(queue)
