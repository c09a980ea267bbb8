"""Count the messages and calls of clients.

There are totals since the start, and rates and average times of the last minute. Counts are updated
per request and per listener call, not per message, so that they cost little.
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
    """The statistics of a consumer.

    Counts begin at the start of the client. Rates and times cover the last minute.
    """

    # `consumed`: messages that the listener consumed, that polls before the last one returned, or
    # that were acknowledged. `failed`: messages that the listener rejected, that were returned or
    # dead-lettered, or that were settled after their lease had ended.
    consumed: int = 0
    failed: int = 0
    # `sent_back`: messages sent back to a broker, for a retry or as dead letters. `passed_over`:
    # messages that a broadcasting member skipped after the last attempt.
    sent_back: int = 0
    passed_over: int = 0
    consumed_per_second: float = 0.0
    failed_per_second: float = 0.0
    # Average milliseconds: of a listener call (push consumer), between two polls (pull consumer),
    # or from the receipt to the settlement of a message (simple consumer).
    average_ms: float = 0.0
    # Messages and bytes that are pulled or leased, and not consumed yet.
    waiting: int = 0
    waiting_bytes: int = 0
    # Queues that the member owns. A simple consumer does not own queues or know its lag.
    queues: int = 0
    # Messages of its queues that are not consumed yet, as of the last pulls.
    lag: int = 0
    # Pulls and receives that failed.
    failed_requests: int = 0

    def to_proto(self) -> client_pb2.ConsumerStatistics:
        return client_pb2.ConsumerStatistics(**asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """The statistics of a producer.

    Counts begin at the start of the client. Rates and times cover the last minute.
    """

    # Messages: `sent` were stored; `failed` were refused or not answered in time.
    sent: int = 0
    failed: int = 0
    # Attempts of requests after the first one.
    retries: int = 0
    sent_per_second: float = 0.0
    failed_per_second: float = 0.0
    # Average milliseconds of a request, including retries.
    average_ms: float = 0.0
    # Messages and bytes of batched single sends that wait for an answer.
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
    """Counts within one interval of SPAN_MS, which begins at `number` times SPAN_MS."""

    number: int
    succeeded: int = 0
    failed: int = 0
    calls: int = 0
    elapsed_ms: int = 0


class Tally:
    """Counts succeeded and failed messages, and the calls for them. Only one thread may use it."""

    def __init__(self, clock: Clock) -> None:
        self.succeeded = 0
        self.failed = 0
        self.retries = 0
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._spans: deque[_Span] = deque(maxlen=SPANS + 1)

    def add(self, succeeded: int, failed: int, elapsed_ms: int, *, calls: int = 1) -> None:
        """Count messages, and the calls that processed them in `elapsed_ms` in total."""
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
        """Return succeeded and failed messages per second, and the average ms of a call."""
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
