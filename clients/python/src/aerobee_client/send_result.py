"""Where a message was stored."""

from __future__ import annotations

from typing import NamedTuple

from aerobee_client.message_queue import MessageQueue
from aerobee_wire import message_id as ids


class SendResult(NamedTuple):
    """The message is durable as the broker's flushDiskType promises. Every other outcome is an
    MqError; so is FLUSH_DISK_TIMEOUT (10), where the message is stored but not known to be durable.

    `message_id`: the property UNIQ_KEY, which stays with the message in every retry.
    `recall_handle`: of a message that waits for its `deliver_at`, for `Producer.recall`; else
    empty.
    """

    message_id: str
    queue: MessageQueue
    queue_offset: int
    physical_offset: int
    store_host: str
    recall_handle: str = ""

    @property
    def offset_message_id(self) -> str:
        """Upper-case hex of store host and physical offset; what get_message takes."""
        return ids.offset_message_id(ids.pack_host(self.store_host), self.physical_offset)
