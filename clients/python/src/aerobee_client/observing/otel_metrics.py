"""Record the metrics of a client.

One record costs a third of a send. Metrics are therefore recorded once for the messages of a
request or call, and not for each message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aerobee_client.observing import otel_names as names
from aerobee_client.observing.otel_attributes import Attributes

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

# Seconds, as the conventions require; the default of OpenTelemetry is for milliseconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class Measurements:
    def __init__(self, meter: Meter) -> None:
        self._sent = meter.create_counter(
            names.SENT_MESSAGES, "{message}", "Messages that a producer tried to send"
        )
        self._consumed = meter.create_counter(
            names.CONSUMED_MESSAGES, "{message}", "Messages that were given to the application"
        )
        self._operation_duration = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "How long a request of sends, a receive or a settlement took",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._process_duration = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "How long a listener took",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )

    def sent(self, message_count: int, elapsed_s: float, attributes: Attributes) -> None:
        self._sent.add(message_count, attributes)
        self._operation_duration.record(elapsed_s, attributes)

    def received(self, message_count: int, elapsed_s: float, attributes: Attributes) -> None:
        self._consumed.add(message_count, attributes)
        self._operation_duration.record(elapsed_s, attributes)

    def settled(self, elapsed_s: float, attributes: Attributes) -> None:
        self._operation_duration.record(elapsed_s, attributes)

    def processed(self, message_count: int, elapsed_s: float, attributes: Attributes) -> None:
        self._consumed.add(message_count, attributes)
        self._process_duration.record(elapsed_s, attributes)
