"""What makes a message a request. Pure."""

from __future__ import annotations

from typing import NamedTuple

from aerobee_client.message import Message, ReceivedMessage
from aerobee_wire import properties as names
from aerobee_wire.status import Code, MqError


class Request(NamedTuple):
    """`client_id`: of the producer that waits. `expires_ms`: until when, since the epoch."""

    correlation_id: str
    client_id: str
    expires_ms: int

    @classmethod
    def of(cls, message: ReceivedMessage) -> Request:
        """Raises INVALID_PARAMETER for a message that is no request."""
        found = message.properties
        correlation_id = found.get(names.CORRELATION_ID, "")
        client_id = found.get(names.REPLY_TO_CLIENT, "")
        ttl_ms = names.whole_number(found.get(names.TTL, ""))
        if not correlation_id or not client_id or ttl_ms is None:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"{message} is no request: reply to what a producer has sent by request()",
            )
        # By the later of two clocks, its producer's and its broker's: one of them may be slow.
        sent_ms = max(message.born_timestamp_ms, message.store_timestamp_ms)
        return cls(correlation_id, client_id, sent_ms + ttl_ms)


def is_past_ttl(message: ReceivedMessage, now_ms: int) -> bool:
    """Whether it is a request whose producer does not wait any more."""
    if not message.is_request:
        return False
    try:
        return Request.of(message).expires_ms < now_ms
    except MqError:
        return False  # whoever sent it, a listener may know what it is


def request_message(
    message: Message, *, correlation_id: str, client_id: str, ttl_ms: int
) -> Message:
    """The message as it is sent. Raises MESSAGE_ILLEGAL for one that is delayed."""
    if message.delayed:
        raise MqError(
            Code.MESSAGE_ILLEGAL,
            "a request cannot be delayed: its producer waits for the reply",
        )
    return message.with_system_properties(
        {
            names.CORRELATION_ID: correlation_id,
            names.REPLY_TO_CLIENT: client_id,
            names.TTL: str(ttl_ms),
        }
    )
