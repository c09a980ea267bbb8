"""The lock of one message queue, as far as its holder may rely on it. Pure; knows no network."""

from __future__ import annotations

from collections.abc import Callable

from aerobee_client.runtime.clock import Clock

TRUST_MS = 30_000  # the broker keeps it for 60 s


class QueueLock:
    """`is_trusted` may be called in any thread; all else on the loop."""

    def __init__(self, clock: Clock) -> None:
        # As the broker counts it, and where that is; 0 and "": never granted.
        self.epoch = 0
        self.address = ""
        # The group's retryMaxTimes at this broker.
        self.max_reconsume_times = 0
        self._clock = clock
        self._trusted_until_ms = 0
        self._waiting: list[Callable[[], None]] = []

    def is_trusted(self) -> bool:
        """Whether a listener may start: no other member can have the lock by now."""
        return self._clock.monotonic_ms() < self._trusted_until_ms

    def renew(self, address: str, asked_ms: int, epoch: int, max_reconsume_times: int) -> None:
        """The broker granted what it was asked for at `asked_ms` (monotonic)."""
        self.address = address
        self.epoch = epoch
        self.max_reconsume_times = max_reconsume_times
        self._trusted_until_ms = asked_ms + TRUST_MS
        waiting, self._waiting = self._waiting, []
        for renewed in waiting:
            renewed()

    def distrust(self) -> None:
        """The link to the broker broke, which frees the lock there."""
        self._trusted_until_ms = 0

    def when_renewed(self, renewed: Callable[[], None]) -> None:
        """Calls `renewed` once, after the next renewal."""
        self._waiting.append(renewed)
