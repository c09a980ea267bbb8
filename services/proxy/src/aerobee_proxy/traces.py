"""Create the spans of a proxy. Only a proxy with `otlpEndpoint` loads this module."""

from __future__ import annotations

from aerobee.broker.v1.message_pb2 import Message

from aerobee_chassis.traces.message_traces import MessageTraces
from aerobee_chassis.traces.spans import sampled_context
from aerobee_wire import properties as props


class ProxyTraces(MessageTraces):
    """Creates the spans of sampled messages. Times are in ns since the epoch."""

    def sent(self, message: Message, begin_ns: int, error: str) -> None:
        """Record a span for the send of a message to its broker.

        Args:
            message: The message.
            begin_ns: The begin of the span.
            error: The failure; empty after a success.
        """
        encoded = message.encoded_properties
        text = props.get(encoded, props.TRACEPARENT_ENTRY)
        if text is None:
            text = props.get(encoded, props.TRACE_CONTEXT_ENTRY)
        parent = None if text is None else sampled_context(text)
        if parent is not None:
            self.record(parent, "proxy_send", message.topic, begin_ns, error=error)
