"""Count events of a replica since its process started, for metrics.

The event loop owns the counters.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum

_MARKS = 4_096  # flushes that wait for replicas at one time; further ones are not measured
_WAITS = 16_384  # waits kept between two calls of `take`


class Reason(StrEnum):
    """The reason for which a replica became master.

    - START: its options made it master, or it was the last master.
    - NO_MASTER: the key of the previous master ended.
    - PORT_REFUSES: the process of the previous master had ended.
    - LATE_ANSWER: a claim whose answer was lost elected the replica.
    - PROMOTION, UNCLEAN_PROMOTION: an operator promoted it, without or with `--unclean`.
    - UNCLEAN: no member of the in-sync set came back.
    """

    START = "start"
    NO_MASTER = "no_master"
    PORT_REFUSES = "port_refuses"
    LATE_ANSWER = "late_answer"
    PROMOTION = "promotion"
    UNCLEAN_PROMOTION = "unclean_promotion"
    UNCLEAN = "unclean"


@dataclass(slots=True)
class ReplicaCounts:
    """Counters of one replica.

    - `received_bytes` counts the bytes received from the logs of masters.
    - `cuts` counts how often the replica cut its own log. `diverged_bytes` and `diverged_messages`
      count the data that it cut off.
    - `given_up_bytes` is a lower bound of the bytes that elections of this replica lost.
    - `elections` counts how often the replica became master, by reason.
    """

    received_bytes: int = 0
    cuts: int = 0
    diverged_bytes: int = 0
    diverged_messages: int = 0
    given_up_bytes: int = 0
    elections: Counter[Reason] = field(default_factory=Counter)

    def received(self, size: int) -> None:
        self.received_bytes += size

    def cut(self, size: int, messages: int) -> None:
        self.cuts += 1
        self.diverged_bytes += size
        self.diverged_messages += messages

    def gave_up(self, size: int) -> None:
        self.given_up_bytes += size

    def elected(self, reason: Reason) -> None:
        self.elections[reason] += 1


class ReplicaWaits:
    """Measure how long flushes of a master waited until all in-sync replicas had the data.

    Times are ms of one monotonic clock. Offsets are physical.
    """

    def __init__(self) -> None:
        self._flushes: deque[tuple[int, int]] = deque()  # end, when
        self._last = 0
        self._waits_ms: deque[int] = deque(maxlen=_WAITS)

    def flushed(self, end: int, now_ms: int) -> None:
        """Record that this master has flushed its log up to `end`."""
        if end > self._last and len(self._flushes) < _MARKS:
            self._flushes.append((end, now_ms))
            self._last = end

    def confirmed(self, end: int, now_ms: int) -> None:
        flushes = self._flushes
        while flushes and flushes[0][0] <= end:
            self._waits_ms.append(now_ms - flushes.popleft()[1])

    def take(self) -> list[int]:
        """Return the waits in ms that ended since the last call."""
        waits = list(self._waits_ms)
        self._waits_ms.clear()
        return waits
