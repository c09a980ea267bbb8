"""Define messages to send and received messages, without any network code."""

from aerobee_client.message.message import (
    MAX_DELAY,
    MAX_PROPERTIES_BYTES,
    AddedProperty,
    Message,
    check_message,
    check_messages,
)
from aerobee_client.message.received_message import ReceivedMessage, received

__all__ = [
    "MAX_DELAY",
    "MAX_PROPERTIES_BYTES",
    "AddedProperty",
    "Message",
    "ReceivedMessage",
    "check_message",
    "check_messages",
    "received",
]
