"""Describe messages that were browsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from aerobee.broker.v1 import message_pb2

from aerobee_client.admin.descriptions.like import like
from aerobee_client.consuming.decoding import received
from aerobee_client.message import ReceivedMessage


@dataclass(frozen=True, slots=True)
class Browsed:
    """Part of a queue.

    `status` is FOUND, NO_NEW_MESSAGE, or OFFSET_MOVED (continue at next_begin_offset).
    """

    status: str
    broker_name: str
    # Concatenated records of the commit log (docs/storage_format.md).
    records: bytes
    message_count: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    # Records before next_begin_offset, from the requested offset on, that failed their check.
    corrupted_count: int

    @classmethod
    def of(cls, broker_name: str, response: message_pb2.PullResponse) -> Self:
        status = message_pb2.PullStatus.Name(response.status)
        return like(cls, response, status=status, broker_name=broker_name)

    def messages(self) -> list[ReceivedMessage]:
        """Decode the records. Raises MESSAGE_CORRUPTED."""
        return received(self.records, self.broker_name)
