"""Notify waiting consumers and listeners of messages that have become visible.

Does not flush or access the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.store.messages import Arrival


class Arrivals:
    """Called with each batch of arrivals: wakes long polls, and notifies the topic's listener."""

    def __init__(self, polls: LongPolls) -> None:
        self._polls = polls
        self._listeners: dict[str, Callable[[Arrival], None]] = {}
        self._expected: list[Callable[[], bool]] = []

    def listen(self, topic: str, on_arrival: Callable[[Arrival], None]) -> None:
        """Call `on_arrival` for each arrival of a topic. A topic has one listener."""
        self._listeners[topic] = on_arrival

    def expect(self, is_expected: Callable[[], bool]) -> None:
        """Make `awaited` also consider this callback."""
        self._expected.append(is_expected)

    def awaited(self) -> bool:
        """Return whether a long poll or another part waits for messages to become visible."""
        return self._polls.count > 0 or any(is_expected() for is_expected in self._expected)

    def __call__(self, arrivals: Sequence[Arrival]) -> None:
        self._polls.arrived(arrivals)
        listeners = self._listeners
        for arrival in arrivals:
            on_arrival = listeners.get(arrival.topic)
            if on_arrival is not None:
                on_arrival(arrival)
