"""Create the spans of a broker. Only a broker with `otlpEndpoint` loads this module.

The context of a message on lease is kept from its delivery, so that an acknowledgement does not
read the message again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aerobee_chassis.traces.context import TraceContext, sampled_context
from aerobee_chassis.traces.exporter import SpanExporter
from aerobee_chassis.traces.message_traces import (
    ATTEMPT,
    GROUP,
    QUEUE_ID,
    QUEUE_OFFSET,
    MessageTraces,
)
from aerobee_chassis.traces.spans import SpanKind
from aerobee_wire import properties as props
from aerobee_wire.record import iter_records

MAX_LEASED = 10_000  # messages on lease whose context is kept
QueueKey = tuple[str, str, int]  # consumer group, topic, queue id


def context_of(encoded: bytes) -> TraceContext | None:
    """Return the context of a message if its trace is sampled, from its encoded properties."""
    text = props.get(encoded, props.TRACEPARENT_ENTRY)
    if text is None:
        text = props.get(encoded, props.TRACE_CONTEXT_ENTRY)
    return None if text is None else sampled_context(text)


class BrokerTraces(MessageTraces):
    """Creates the spans of sampled messages. Times are in ns since the epoch."""

    def __init__(self, exporter: SpanExporter) -> None:
        super().__init__(exporter)
        self._leased: dict[tuple[QueueKey, int], tuple[TraceContext, int]] = {}

    def sent(
        self, messages: Iterable[tuple[str, bytes]], *, begin_ns: int, store_begin_ns: int
    ) -> None:
        """Record spans for stored messages, each with a topic and encoded properties.

        The span `store` is the append and the wait for the disk and for replicas.
        """
        end_ns = self.now_ns()
        for topic, encoded in messages:
            parent = context_of(encoded)
            if parent is None:
                continue
            send = self.record(parent, "send", topic, begin_ns, end_ns=end_ns)
            self.record(send, "store", topic, store_begin_ns, end_ns=end_ns, kind=SpanKind.INTERNAL)

    def delivered(self, consumer_group: str, records: bytes) -> None:
        """Record spans for the records of a pull."""
        if not _may_be_traced(records):
            return
        now_ns = self.now_ns()
        for record in iter_records(records, check_crc=False):
            if parent := context_of(record.raw_properties):
                attributes = _place((consumer_group, "", record.queue_id), record.queue_offset)
                self.record(parent, "deliver", record.topic, now_ns, attributes=attributes)

    def leased(
        self,
        messages: Iterable[tuple[QueueKey, int]],
        records: Sequence[bytes],
        attempts: Sequence[int],
        begin_ns: int,
    ) -> None:
        """Record spans for the messages of a pop, and remember their contexts."""
        if not any(map(_may_be_traced, records)):
            return
        decoded = (record for raw in records for record in iter_records(raw, check_crc=False))
        for (key, offset), record, attempt in zip(messages, decoded, attempts, strict=True):
            parent = context_of(record.raw_properties)
            if parent is None:
                continue
            attributes = {**_place(key, offset), ATTEMPT: attempt}
            self.record(parent, "deliver", record.topic, begin_ns, attributes=attributes)
            if len(self._leased) >= MAX_LEASED:
                del self._leased[next(iter(self._leased))]
            self._leased[key, offset] = parent, attempt

    def settled(self, messages: Iterable[tuple[QueueKey, int]], begin_ns: int) -> None:
        """Record spans for acknowledged messages."""
        for key, offset in messages:
            if found := self._leased.pop((key, offset), None):
                attributes = {**_place(key, offset), ATTEMPT: found[1]}
                self.record(found[0], "settle", key[1], begin_ns, attributes=attributes)

    def lease_ended(self, key: QueueKey, offset: int) -> None:
        """Record a span for a message whose lease has ended, and that is delivered again."""
        if found := self._leased.pop((key, offset), None):
            attributes = {**_place(key, offset), ATTEMPT: found[1]}
            self.record(
                found[0],
                "retry",
                key[1],
                self.now_ns(),
                kind=SpanKind.INTERNAL,
                attributes=attributes,
            )

    def stored_again(
        self, operation: str, topic: str, consumer_group: str, encoded: bytes, begin_ns: int
    ) -> None:
        """Record a span for a message that was stored again, if it is sampled.

        Args:
            operation: "retry", "dead_letter" or "redrive".
            topic: The topic of the new message.
            consumer_group: The group whose attempt failed.
            encoded: The encoded properties of the new message.
            begin_ns: The begin of the span.
        """
        if parent := context_of(encoded):
            attributes = {GROUP: consumer_group}
            self.record(parent, operation, topic, begin_ns, attributes=attributes)


def _may_be_traced(records: bytes) -> bool:
    return props.TRACEPARENT_ENTRY in records or props.TRACE_CONTEXT_ENTRY in records


def _place(key: QueueKey, offset: int) -> dict[str, str | int]:
    return {GROUP: key[0], QUEUE_ID: str(key[2]), QUEUE_OFFSET: offset}
