"""Define the results of sends, transactions and requests."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from aerobee_client.message_queue import MessageQueue
from aerobee_wire import message_id as ids


class SendResult(NamedTuple):
    """The result of a stored message, whose durability the broker's flushDiskType determines.

    Every other outcome of a send raises an MqError. With FLUSH_DISK_TIMEOUT (10) the message is
    stored, but may not be durable. With FLUSH_SLAVE_TIMEOUT (12) it is stored, but may be missing
    on required replicas.

    Attributes:
        message_id: The property UNIQ_KEY, which is the same in every retry.
        queue: The message queue that stores the message.
        queue_offset: The offset in `queue`; for a half message, the offset among half messages.
        physical_offset: The offset in the commit log of the broker, in bytes.
        store_host: The address of the broker that stored the message.
        recall_handle: The argument of `Producer.recall`, for a message with `delay` or
            `deliver_at`; otherwise empty.
        transaction_id: The transaction of a half message; otherwise empty.
    """

    message_id: str
    queue: MessageQueue
    queue_offset: int
    physical_offset: int
    store_host: str
    recall_handle: str = ""
    transaction_id: str = ""

    @property
    def offset_message_id(self) -> str:
        """The store host and physical offset in upper-case hex, which `get_message` accepts."""
        return ids.offset_message_id(ids.pack_host(self.store_host), self.physical_offset)


class TransactionResolution(Enum):
    """The decision about a transaction. With UNKNOWN it stays open, and the broker asks again."""

    COMMIT = auto()
    ROLLBACK = auto()
    UNKNOWN = auto()


class TransactionSendResult(NamedTuple):
    """The result of a send in a transaction.

    Attributes:
        sent: The result of the half message.
        resolution: The decision of the program.
    """

    sent: SendResult
    resolution: TransactionResolution


class Reply(NamedTuple):
    """The reply of a consumer to a request.

    Attributes:
        body: The body of the reply.
        properties: The properties that the consumer set.
    """

    body: bytes
    properties: Mapping[str, str]


class DroppedReplies(NamedTuple):
    """The numbers of replies that the producer discarded.

    Attributes:
        late: Replies that arrived after the timeout of their request.
        double: Replies to a request that already had a reply.
        foreign: Replies that do not belong to a request of this producer.
    """

    late: int = 0
    double: int = 0
    foreign: int = 0
