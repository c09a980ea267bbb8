"""Encode and decode recall handles: a producer uses them to recall a delayed message.

RocketMQ's form is "v1 topic brokerName timestamp uniqueKey" in base64 for URLs. The timestamp is
the deliver time plus one millisecond.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from aerobee_wire.status import invalid_parameter

_FORM = re.compile(r"v1 (\S+) (.+?) ([0-9]{1,18}) (.+)", re.ASCII)
_AFTER_MS = 1
MAX_CHARACTERS = 2_048


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The name of a delayed message. `deliver_ms` is in milliseconds since the epoch."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str


def encode(handle: RecallHandle) -> str:
    """Return the recall handle for the producer."""
    text = (
        f"v1 {handle.topic} {handle.broker_name} {handle.deliver_ms + _AFTER_MS} "
        f"{handle.unique_key}"
    )
    return base64.urlsafe_b64encode(text.encode()).decode("ascii")


def decode(text: str) -> RecallHandle:
    """Return the delayed message that a recall handle names.

    Raises MqError with the code INVALID_PARAMETER for an invalid recall handle.
    """
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError
        plain = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = _FORM.fullmatch(plain.decode())
    except (binascii.Error, ValueError):  # not base64, or not UTF-8
        found = None
    if found is None:
        raise invalid_parameter(
            "the recall handle is invalid: give back the text that came with the message, unchanged"
        )
    topic, broker_name, timestamp, unique_key = found.groups()
    return RecallHandle(topic, broker_name, int(timestamp) - _AFTER_MS, unique_key)
