"""Track how long the holder of a queue's lock may rely on it. Pure; uses no network."""

from __future__ import annotations

from collections.abc import Callable

from aerobee_client.runtime.clock import Clock

TRUST_MS = 30_000  # the broker keeps it for 60 s


class QueueLock:
    """The lock of one queue. Any thread may call `is_trusted`; all else runs on the loop."""

    def __init__(self, clock: Clock) -> None:
        # The epoch that the broker counts, and the broker's address; 0 and "" if never granted.
        self.epoch = 0
        self.address = ""
        # The group's retryMaxTimes at this broker.
        self.max_reconsume_times = 0
        self._clock = clock
        self._trusted_until_ms = 0
        self._waiting: list[Callable[[], None]] = []

    def is_trusted(self) -> bool:
        """Return whether a listener may start: another member cannot have the lock yet."""
        return self._clock.monotonic_ms() < self._trusted_until_ms

    def renew(self, address: str, asked_ms: int, epoch: int, max_reconsume_times: int) -> None:
        """Note that the broker granted a request that was sent at `asked_ms` (monotonic)."""
        self.address = address
        self.epoch = epoch
        self.max_reconsume_times = max_reconsume_times
        self._trusted_until_ms = asked_ms + TRUST_MS
        waiting, self._waiting = self._waiting, []
        for renewed in waiting:
            renewed()

    def distrust(self) -> None:
        """Note that the link to the broker broke, which frees the lock there."""
        self._trusted_until_ms = 0

    def when_renewed(self, renewed: Callable[[], None]) -> None:
        """Call `renewed` once, after the next renewal."""
        self._waiting.append(renewed)
