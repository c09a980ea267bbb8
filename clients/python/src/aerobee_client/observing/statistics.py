"""What clients count of themselves: totals since the start, rates and times of the last minute.

Counted per request and per call of a listener, not per message, so that it costs nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Self

from aerobee.broker.v1 import client_pb2

from aerobee_client.runtime.clock import Clock

SPAN_MS = 10_000
SPANS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """Counts are since the start; rates and times are of the last minute."""

    # Messages: consumed by the listener, returned by polls before the last one, or acknowledged;
    # rejected by the listener, given back, dead-lettered, or settled too late for their lease.
    consumed: int = 0
    failed: int = 0
    # Sent back to a broker, for a retry or as dead letters; given up by a broadcasting member.
    sent_back: int = 0
    passed_over: int = 0
    consumed_per_second: float = 0.0
    failed_per_second: float = 0.0
    # Of a call of the listener; between two polls; from the receipt of a message to its settlement.
    average_ms: float = 0.0
    # Pulled or on lease, and not consumed yet.
    waiting: int = 0
    waiting_bytes: int = 0
    # Of its own: a simple consumer has none, and what is left is not known to it.
    queues: int = 0
    # Messages between what is consumed of its queues and their ends, as of its last pulls.
    lag: int = 0
    # Pulls and receives that failed.
    failed_requests: int = 0

    def to_proto(self) -> client_pb2.ConsumerStatistics:
        return client_pb2.ConsumerStatistics(**asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """Counts are since the start; rates and times are of the last minute."""

    # Messages: stored, and refused or not answered in time.
    sent: int = 0
    failed: int = 0
    # Attempts after the first one of a request.
    retries: int = 0
    sent_per_second: float = 0.0
    failed_per_second: float = 0.0
    # Of a request, retries included.
    average_ms: float = 0.0
    # Accepted, and not answered yet; of sends that travel together.
    waiting: int = 0
    waiting_bytes: int = 0

    @classmethod
    def of(cls, tally: Tally, waiting: int, waiting_bytes: int) -> Self:
        sent_per_second, failed_per_second, average_ms = tally.rates()
        return cls(
            sent=tally.succeeded,
            failed=tally.failed,
            retries=tally.retries,
            sent_per_second=sent_per_second,
            failed_per_second=failed_per_second,
            average_ms=average_ms,
            waiting=waiting,
            waiting_bytes=waiting_bytes,
        )

    def to_proto(self) -> client_pb2.ProducerStatistics:
        return client_pb2.ProducerStatistics(**asdict(self))


@dataclass(slots=True)
class _Span:
    """What was counted in SPAN_MS from `number` times SPAN_MS on."""

    number: int
    succeeded: int = 0
    failed: int = 0
    calls: int = 0
    elapsed_ms: int = 0


class Tally:
    """Messages that succeeded and failed, and the calls that decided it. For one thread."""

    def __init__(self, clock: Clock) -> None:
        self.succeeded = 0
        self.failed = 0
        self.retries = 0
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._spans: deque[_Span] = deque(maxlen=SPANS + 1)

    def add(self, succeeded: int, failed: int, elapsed_ms: int, *, calls: int = 1) -> None:
        """Calls, of `elapsed_ms` together, that decided about these messages."""
        self.succeeded += succeeded
        self.failed += failed
        number = self._clock.monotonic_ms() // SPAN_MS
        if not self._spans or self._spans[-1].number != number:
            self._spans.append(_Span(number))
        span = self._spans[-1]
        span.succeeded += succeeded
        span.failed += failed
        span.calls += calls
        span.elapsed_ms += elapsed_ms

    def retried(self) -> None:
        self.retries += 1

    def rates(self) -> tuple[float, float, float]:
        """Messages per second that succeeded, that failed, and milliseconds of a call."""
        now_ms = self._clock.monotonic_ms()
        first = now_ms // SPAN_MS - SPANS + 1
        spans = [span for span in self._spans if span.number >= first]
        seconds = max(now_ms - max(first * SPAN_MS, self._began_ms), 1_000) / 1_000
        calls = sum(span.calls for span in spans)
        return (
            sum(span.succeeded for span in spans) / seconds,
            sum(span.failed for span in spans) / seconds,
            sum(span.elapsed_ms for span in spans) / calls if calls else 0.0,
        )
