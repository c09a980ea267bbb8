"""Define a run: messages of a line that a runner passes to the listener one after the other.

A run saves the way to the event loop and back for each message. It is short, so that the offset
follows soon.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aerobee_client.consuming.listener import Consume, Verdicts
from aerobee_client.consuming.order.line import Line, QueueInOrder
from aerobee_client.consuming.runners import Batch
from aerobee_client.message import ReceivedMessage
from aerobee_client.runtime.clock import Clock

MAX_MESSAGES = 128
MAX_MS = 20


@dataclass(slots=True, eq=False, kw_only=True)
class Run(Batch):
    """Calls the listener with `call_size` messages at a time.

    It ends when a message is rejected, the queue is stopped, its lock is not trusted, or MAX_MS
    have passed. `call` and `call_async` return the verdicts of the messages that the listener got,
    which are the first ones.
    """

    queue: QueueInOrder
    line: Line
    call_size: int
    clock: Clock

    def call(self, consume: Consume) -> Verdicts:
        found: Verdicts = []
        for messages in self._calls(found):
            found += consume.call(messages)
        return found

    async def call_async(self, consume: Consume) -> Verdicts:
        found: Verdicts = []
        for messages in self._calls(found):
            found += await consume.call_async(messages)
        return found

    def _calls(self, found: Verdicts) -> Iterator[list[ReceivedMessage]]:
        """Yield the messages of each call. Its verdicts must be in `found` before the next."""
        until_ms = self.clock.monotonic_ms() + MAX_MS
        for start in range(0, len(self.messages), self.call_size):
            if not self.queue.may_go_on():
                return
            yield self.messages[start : start + self.call_size]
            rejected = any(found[start:])
            if rejected or self.clock.monotonic_ms() >= until_ms:
                return
