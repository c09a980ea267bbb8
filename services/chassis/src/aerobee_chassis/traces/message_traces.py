"""Create the spans of a server for messages whose producer has sampled their trace."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache

from aerobee_chassis.traces.exporter import SpanExporter
from aerobee_chassis.traces.spans import Span, SpanKind, TraceContext, child_of

# Names of OpenTelemetry's semantic conventions.
OPERATION = "messaging.operation.name"
TOPIC = "messaging.destination.name"
GROUP = "messaging.consumer.group.name"
QUEUE_ID = "messaging.destination.partition.id"
QUEUE_OFFSET = "messaging.rocketmq.message.queue_offset"
ATTEMPT = "messaging.rocketmq.message.attempt"


class MessageTraces:
    """Creates spans and gives them to the exporter.

    Each span is a child of the producer's span, so that no server changes a message.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.now_ns = time.time_ns

    def record(
        self,
        parent: TraceContext,
        operation: str,
        topic: str,
        begin_ns: int,
        *,
        kind: SpanKind = SpanKind.SERVER,
        end_ns: int = 0,
        error: str = "",
        attributes: Mapping[str, str | int] | None = None,
    ) -> TraceContext:
        """Record a finished span, and return its context.

        Args:
            parent: The parent of the span.
            operation: The name of the operation, such as "store".
            topic: The topic of the message.
            begin_ns: The begin in ns since the epoch.
            kind: The kind of the span.
            end_ns: The end in ns since the epoch; 0 for now.
            error: The failure; empty after a success.
            attributes: Further attributes.
        """
        context = child_of(parent)
        name, common = _of_topic(operation, topic)
        self._exporter.add(
            Span(
                context,
                parent.span_id,
                name,
                kind,
                begin_ns,
                end_ns or self.now_ns(),
                {**common, **attributes} if attributes else common,
                error,
            )
        )
        return context


@lru_cache(maxsize=4_096)
def _of_topic(operation: str, topic: str) -> tuple[str, Mapping[str, str | int]]:
    """Return the name and the attributes that these spans have in common."""
    common = {"messaging.system": "rocketmq", OPERATION: operation, TOPIC: topic}
    return f"{operation} {topic}", common
