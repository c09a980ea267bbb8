"""Hand messages to a thread together. The thread takes them one by one.

A loop of the plain pull consumer therefore asks the consumer's thread only once for all available
messages. Each message counts as a poll: it is consumed when the thread takes the next one.
"""

from __future__ import annotations

from collections import deque

from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.message import ReceivedMessage

Item = tuple[ProcessQueue, ReceivedMessage]


class Lent:
    """Messages that were handed to a thread.

    The thread that reads calls `take`, and the event loop calls everything else. A message leaves
    the deque once, by `take` or by `end`, in either thread.
    """

    def __init__(self, items: list[Item]) -> None:
        self._items = items
        self._left = deque(items)
        self._settled = 0  # items that were returned by `consumed` or `end`

    @property
    def taken(self) -> int:
        """The number of messages that have left the deque."""
        return len(self._items) - len(self._left)

    def take(self) -> ReceivedMessage | None:
        """Return the next message; None if there are no more.

        Messages of a queue that was lost or moved by a seek in the meantime are skipped.
        """
        while True:
            try:
                process_queue, message = self._left.popleft()
            except IndexError:
                return None
            if not process_queue.dropped:
                return message

    def consumed(self) -> list[Item]:
        """Return the items that were taken before the last one, since the previous call."""
        begin = self._settled
        self._settled = max(begin, len(self._items) - len(self._left) - 1)
        return self._items[begin : self._settled]

    def end(self) -> tuple[list[Item], list[Item]]:
        """End the loan. Return the items taken since the last `consumed`, and those not taken.

        It removes items from the end: the thread may take items from the beginning in the meantime.
        """
        rest: list[Item] = []
        while self._left:
            try:
                rest.append(self._left.pop())
            except IndexError:  # the thread has just taken it
                break
        rest.reverse()
        taken = self._items[self._settled : len(self._items) - len(rest)]
        self._settled = len(self._items)
        return taken, rest
