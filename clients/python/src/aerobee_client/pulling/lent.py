"""Messages that were handed to a thread together, and that it takes one by one.

So a loop of the plain pull consumer asks the consumer's thread once for all that is there. Each
message is like one of a poll of its own: it counts as consumed when the thread takes the next.
"""

from __future__ import annotations

from collections import deque

from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.message import ReceivedMessage

Item = tuple[ProcessQueue, ReceivedMessage]


class Lent:
    """`take` is for the thread that reads, everything else for the loop. A message leaves the deque
    once, by `take` or by `end`, in whichever thread that is."""

    def __init__(self, items: list[Item]) -> None:
        self._items = items
        self._left = deque(items)
        self._settled = 0  # items that were returned by `consumed` or `end`

    @property
    def taken(self) -> int:
        """How many have left the deque."""
        return len(self._items) - len(self._left)

    def take(self) -> ReceivedMessage | None:
        """The next message; None when there is no other. Those of a queue that was lost or sought
        since are passed over."""
        while True:
            try:
                process_queue, message = self._left.popleft()
            except IndexError:
                return None
            if not process_queue.dropped:
                return message

    def consumed(self) -> list[Item]:
        """Those that were taken before the last one, since the call before."""
        begin = self._settled
        self._settled = max(begin, len(self._items) - len(self._left) - 1)
        return self._items[begin : self._settled]

    def end(self) -> tuple[list[Item], list[Item]]:
        """Nothing is taken any more. Those that were taken since the last `consumed`, and those
        that were not.

        From the end on: the thread may take meanwhile, and what it has is then the beginning."""
        rest: list[Item] = []
        while self._left:
            try:
                rest.append(self._left.pop())
            except IndexError:  # it was taken just now
                break
        rest.reverse()
        taken = self._items[self._settled : len(self._items) - len(rest)]
        self._settled = len(self._items)
        return taken, rest
