"""What sends, transactions and requests answer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from aerobee_client.message_queue import MessageQueue
from aerobee_wire import message_id as ids


class SendResult(NamedTuple):
    """The message is as durable as the broker's flushDiskType says. Every other outcome is an
    MqError, also FLUSH_DISK_TIMEOUT (10): the message is stored, but may not be durable; and
    FLUSH_SLAVE_TIMEOUT (12): it is stored, but may not be on the replicas that it must be on.

    `message_id`: the property UNIQ_KEY, the same in every retry. `recall_handle`: for
    `Producer.recall`, of a message with `deliver_at`; else empty. `transaction_id`: of a half
    message, whose `queue_offset` is that among half messages; else empty.
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
        """Store host and physical offset in upper-case hex; what `get_message` takes."""
        return ids.offset_message_id(ids.pack_host(self.store_host), self.physical_offset)


class TransactionResolution(Enum):
    """How a transaction ends. UNKNOWN: not now; the broker asks again."""

    COMMIT = auto()
    ROLLBACK = auto()
    UNKNOWN = auto()


class TransactionSendResult(NamedTuple):
    """`sent`: of the half message. `resolution`: what the program decided then."""

    sent: SendResult
    resolution: TransactionResolution


class Reply(NamedTuple):
    """What a consumer replied to a request. `properties`: those that it gave."""

    body: bytes
    properties: Mapping[str, str]


class DroppedReplies(NamedTuple):
    """Replies that nobody waited for: they came after the timeout, or were not the first, or
    belong to no request of this producer."""

    late: int = 0
    double: int = 0
    foreign: int = 0
