"""Export spans to an OTLP receiver, in batches and on a thread of its own.

Adding a span never waits. If the receiver is slower than the spans, spans are dropped and counted.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog

from aerobee_chassis.config import TraceOptions, metadata_of
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.metrics.process import SPANS
from aerobee_chassis.metrics.series import Series
from aerobee_chassis.otlp.receiver import Receiver, resource_of
from aerobee_chassis.traces.spans import EXPORT, Span, request

MAX_WAITING = 16_384  # spans: about 10 MB
BATCH = 512  # spans of one request
INTERVAL_S = 1.0
TIMEOUT_S = 3.0  # of one request
STOP_S = 2.0  # how long a stop waits for the last export

# Sends a request. Yields what the receiver rejects, or "". Raises OSError if it got nothing.
Send = Callable[[bytes], Iterable[str]]


class SpanExporter(Component):
    """Keep the newest spans until they are exported.

    Args:
        send: Sends a request.
        resource: The attributes of this process.
    """

    def __init__(self, send: Send, resource: Mapping[str, str]) -> None:
        self._send = send
        self._resource = resource
        self._waiting: deque[Span] = deque()
        self._wake = threading.Event()
        self._ended = False
        self._failing = False
        self._thread: threading.Thread | None = None
        self.exported = 0
        self.full = 0  # dropped because too many waited
        self.failed = 0  # dropped because the receiver did not accept them

    def add(self, span: Span) -> None:
        """Export a span later. Drop it if too many are waiting."""
        waiting = self._waiting
        if len(waiting) >= MAX_WAITING:
            self.full += 1
            return
        waiting.append(span)
        if len(waiting) == BATCH:
            self._wake.set()

    async def start(self) -> None:
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Export what waits, for at most STOP_S."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_S)

    def collect(self) -> Iterator[Series]:
        """Yield the metrics of the exporter."""
        yield Series(
            SPANS,
            {
                ("exported",): self.exported,
                ("dropped_full",): self.full,
                ("dropped_failed",): self.failed,
            },
        )

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(INTERVAL_S)
            self._wake.clear()
            self.export()

    def export(self) -> None:
        """Export the spans that wait now. Drop those that the receiver does not accept."""
        for _ in range(0, len(self._waiting), BATCH):
            spans = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            try:
                problems = [each for each in self._send(request(spans, self._resource)) if each]
            except Exception as error:  # the thread must outlive each of them
                self.failed += len(spans)
                if not self._failing:  # once, because each batch fails until the receiver is back
                    unforeseen = None if isinstance(error, OSError) else error
                    structlog.get_logger().warning(
                        "spans_not_exported", reason=str(error), exc_info=unforeseen
                    )
                self._failing = True
            else:
                self._failing = False
                self.exported += len(spans)
                for problem in problems:
                    structlog.get_logger().warning("spans_rejected", reason=problem)


def exporter_of(options: TraceOptions, node_type: str) -> SpanExporter:
    """Return the exporter to `otlpEndpoint`, which must not be empty."""
    headers = metadata_of(options.otlp_header.get_secret_value())
    receiver = Receiver(options.otlp_endpoint, headers, timeout_s=TIMEOUT_S)
    return SpanExporter(lambda encoded: receiver.export(EXPORT, [encoded]), resource_of(node_type))
