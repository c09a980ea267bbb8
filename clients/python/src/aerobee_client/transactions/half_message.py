"""Identify a half message, and prepare a message for a transaction. Pure."""

from __future__ import annotations

from typing import NamedTuple

from aerobee.broker.v1 import transaction_pb2

from aerobee_client.message import Message
from aerobee_client.send_result import SendResult, TransactionResolution
from aerobee_wire import properties as names
from aerobee_wire.status import Code, MqError

WIRE_RESOLUTIONS = {
    TransactionResolution.COMMIT: transaction_pb2.COMMIT,
    TransactionResolution.ROLLBACK: transaction_pb2.ROLLBACK,
}


class HalfMessage(NamedTuple):
    """A half message.

    `queue_offset`: the offset of its first copy, among the half messages of that broker.
    """

    topic: str
    broker_name: str
    transaction_id: str
    queue_offset: int

    @classmethod
    def stored(cls, result: SendResult) -> HalfMessage:
        """Make it from a result.

        Raises VERSION_NOT_SUPPORTED if the broker stored a normal message.
        """
        queue = result.queue
        if not result.transaction_id:
            raise MqError(
                Code.VERSION_NOT_SUPPORTED,
                f"broker {queue.broker_name} knows no transactions and has stored the message as "
                "any other: bring it to the version of this client",
            )
        return cls(queue.topic, queue.broker_name, result.transaction_id, result.queue_offset)


def half(message: Message) -> Message:
    """Return the message as it is sent when a transaction begins.

    Raises MESSAGE_ILLEGAL for a message of a message group or lite topic.
    """
    if message.order_key:
        raise MqError(
            Code.MESSAGE_ILLEGAL,
            f"the message is in the order of {message.order_key!r}, and would take its place there "
            "only when its transaction is committed: send it without message_group and lite_topic",
        )
    return message.with_system_properties({names.TRANSACTION_PREPARED: "true"})
