"""Count durations in buckets, so that percentiles of millions of them take little memory."""

from __future__ import annotations

import math
from collections import Counter

# The bounds of neighbouring buckets differ by 1 %, so a percentile is at most 1 % too high.
STEP = math.log(1.01)
LEAST_MS = 0.001  # shorter durations count as this one


class Latencies:
    """Durations in milliseconds. `max_ms` is the longest, or None if there is none."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.max_ms: float | None = None

    def add(self, milliseconds: float) -> None:
        self._buckets[math.ceil(math.log(max(milliseconds, LEAST_MS)) / STEP)] += 1
        self.count += 1
        if self.max_ms is None or milliseconds > self.max_ms:
            self.max_ms = milliseconds

    def percentile(self, share: float) -> float | None:
        """Return the duration that `share` of the durations (0 to 1) do not exceed.

        Returns None without durations. The result is never above `max_ms`.
        """
        left = math.ceil(self.count * share)
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                assert self.max_ms is not None
                return min(math.exp(bucket * STEP), self.max_ms)
        return None
