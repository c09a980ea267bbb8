"""Where a message was stored."""

from __future__ import annotations

from typing import NamedTuple

from aerobee_client.message_queue import MessageQueue
from aerobee_wire import message_id as ids


class SendResult(NamedTuple):
    """The message is as durable as the broker's flushDiskType says. Every other outcome is an
    MqError, also FLUSH_DISK_TIMEOUT (10): the message is stored, but may not be durable.

    `message_id`: the property UNIQ_KEY, the same in every retry. `recall_handle`: for
    `Producer.recall`, of a message with `deliver_at`; else empty.
    """

    message_id: str
    queue: MessageQueue
    queue_offset: int
    physical_offset: int
    store_host: str
    recall_handle: str = ""

    @property
    def offset_message_id(self) -> str:
        """Store host and physical offset in upper-case hex; what `get_message` takes."""
        return ids.offset_message_id(ids.pack_host(self.store_host), self.physical_offset)
