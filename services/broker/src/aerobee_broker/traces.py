"""Create the spans of a broker. Only a broker with `otlpEndpoint` loads this module.

The context of a message on lease is kept from its delivery, so that an acknowledgement does not
read the message again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from aerobee_chassis.traces.exporter import SpanExporter
from aerobee_chassis.traces.message_traces import (
    ATTEMPT,
    GROUP,
    QUEUE_ID,
    QUEUE_OFFSET,
    MessageTraces,
)
from aerobee_chassis.traces.spans import SpanKind, TraceContext, sampled_context
from aerobee_wire import properties as props
from aerobee_wire.record import iter_records

MAX_LEASED = 10_000  # messages on lease whose context is kept
QueueKey = tuple[str, str, int]  # consumer group, topic, queue id

# The entries of a context, with the flags of a sampled trace: an odd number 54 characters behind
# the name. A search in the properties of a batch costs 1 % of looking at each message.
_SAMPLED = tuple(
    (entry, re.compile(re.escape(entry) + rb"(?=.{54}[13579bdf])", re.DOTALL))
    for entry in (props.TRACEPARENT_ENTRY, props.TRACE_CONTEXT_ENTRY)
)


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

    def sent(self, topic: str, encoded: bytes, *, begin_ns: int, store_begin_ns: int) -> None:
        """Record spans for a stored message, if it is sampled, from its encoded properties.

        The span `store` is the append and the wait for the disk and for replicas.
        """
        if not _may_be_sampled(encoded) or (parent := context_of(encoded)) is None:
            return
        end_ns = self.now_ns()
        send = self.record(parent, "send", topic, begin_ns, end_ns=end_ns)
        self.record(send, "store", topic, store_begin_ns, end_ns=end_ns, kind=SpanKind.INTERNAL)

    def batch_sent(
        self,
        topic: str,
        encoded: bytes,
        sizes: Sequence[int],
        *,
        begin_ns: int,
        store_begin_ns: int,
    ) -> None:
        """Record spans for the sampled messages of a batch.

        Args:
            topic: The topic of the messages.
            encoded: Their encoded properties, one behind the other.
            sizes: The size of the properties of each message.
            begin_ns: The begin of the request.
            store_begin_ns: The begin of the append.
        """
        if not _may_be_sampled(encoded):
            return
        ends = list(accumulate(sizes))
        for number in sorted({bisect_right(ends, at) for at in _places_of_sampled(encoded)}):
            message = encoded[ends[number] - sizes[number] : ends[number]]
            self.sent(topic, message, begin_ns=begin_ns, store_begin_ns=store_begin_ns)

    def delivered(self, consumer_group: str, records: bytes) -> None:
        """Record spans for the records of a pull."""
        if not _may_be_sampled(records):
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
        if not any(map(_may_be_sampled, records)):
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


def _may_be_sampled(encoded: bytes) -> bool:
    """Return False if no message in these properties or records is sampled. True may be wrong."""
    return any(entry in encoded and sampled.search(encoded) for entry, sampled in _SAMPLED)


def _places_of_sampled(encoded: bytes) -> Iterator[int]:
    """Yield where in the properties of a batch a context begins that may be sampled."""
    for entry, sampled in _SAMPLED:
        if entry in encoded:
            yield from (found.start() for found in sampled.finditer(encoded))


def _place(key: QueueKey, offset: int) -> dict[str, str | int]:
    return {GROUP: key[0], QUEUE_ID: str(key[2]), QUEUE_OFFSET: offset}
