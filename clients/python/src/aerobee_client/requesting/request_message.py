"""Mark a message as a request. Pure."""

from __future__ import annotations

from typing import NamedTuple

from aerobee_client.message import Message, ReceivedMessage
from aerobee_wire import properties as names
from aerobee_wire.status import Code, MqError


class Request(NamedTuple):
    """A request.

    `client_id`: the producer that waits. `expires_ms`: the end of its wait, in milliseconds since
    the epoch.
    """

    correlation_id: str
    client_id: str
    expires_ms: int

    @classmethod
    def of(cls, message: ReceivedMessage) -> Request:
        """Read a request. Raises INVALID_PARAMETER for another message."""
        found = message.properties
        correlation_id = found.get(names.CORRELATION_ID, "")
        client_id = found.get(names.REPLY_TO_CLIENT, "")
        ttl_ms = names.whole_number(found.get(names.TTL, ""))
        if not correlation_id or not client_id or ttl_ms is None:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"{message} is not a request: reply to what a producer has sent by request()",
            )
        # By the later one of the producer's and the broker's clock: one of them may be slow.
        sent_ms = max(message.born_timestamp_ms, message.store_timestamp_ms)
        return cls(correlation_id, client_id, sent_ms + ttl_ms)


def is_past_ttl(message: ReceivedMessage, now_ms: int) -> bool:
    """Return whether it is a request whose producer no longer waits."""
    if not message.is_request:
        return False
    try:
        return Request.of(message).expires_ms < now_ms
    except MqError:
        return False  # an invalid request goes to the listener, which may understand it


def request_message(
    message: Message, *, correlation_id: str, client_id: str, ttl_ms: int
) -> Message:
    """Return the message as it is sent. Raises MESSAGE_ILLEGAL for a delayed message."""
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
