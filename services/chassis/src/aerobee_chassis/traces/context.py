"""Read the trace context that a producer sent with a message: W3C's `traceparent`."""

from __future__ import annotations

import re
from typing import NamedTuple

# Version, trace id, span id, flags, and fields that a later version of the format adds.
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class TraceContext(NamedTuple):
    """The span of a producer."""

    trace_id: bytes
    span_id: bytes


def sampled_context(text: bytes) -> TraceContext | None:
    """Return the context in a `traceparent`.

    Return None if its trace is not sampled, or if the text is invalid.
    """
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, further = found.groups()
    if version == b"ff" or (version == b"00" and further) or not int(flags, 16) & _SAMPLED:
        return None
    context = TraceContext(bytes.fromhex(trace_id.decode()), bytes.fromhex(span_id.decode()))
    return context if any(context.trace_id) and any(context.span_id) else None
