"""Define a message on lease: a received message that the consumer can settle for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aerobee_client.message import ReceivedMessage
from aerobee_wire.handles import receipt_handle
from aerobee_wire.handles.receipt_handle import ReceiptHandle

if TYPE_CHECKING:
    from aerobee_wire.record import Record


class LeasedMessage(ReceivedMessage):
    """A received message that other consumers of its group do not get until its lease ends.

    Attributes:
        handle: The current lease. A renewal changes its end.
        is_settled: Whether this client has acknowledged or dead-lettered the message.
        reconsume_times: The number of deliveries before this one.
        until_ms: The end of the lease, in milliseconds of the client's monotonic clock.
    """

    __slots__ = ("handle", "is_settled", "until_ms")

    def __init__(self, record: Record, handle: ReceiptHandle, until_ms: int) -> None:
        """Create a message on lease. `until_ms` is a time of the client's monotonic clock."""
        # The fields of ReceivedMessage too: to call its constructor would cost 0.2 µs a message.
        self._record = record
        self.broker_name = handle.broker_name
        self.topic = record.topic
        self.queue_offset = record.queue_offset
        self.reconsume_times = handle.delivery_attempt - 1
        self.handle = handle
        self.until_ms = until_ms
        self.is_settled = False

    @property
    def delivery_attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self.handle.delivery_attempt

    @property
    def receipt_handle(self) -> str:
        """The lease as text, by which another process or a client of the proxy can settle it."""
        return receipt_handle.encode(self.handle)

    @property
    def leased_until(self) -> datetime:
        """The end of the lease by the broker's clock, in UTC."""
        return datetime.fromtimestamp(self.handle.expires_ms / 1_000, UTC)

    def extend(self, pop_time_ms: int, invisible_duration_ms: int, until_ms: int) -> None:
        """Change the end of the lease to `invisible_duration_ms` after `pop_time_ms`.

        `pop_time_ms` is by the broker's clock. `until_ms` is the same end by the client's monotonic
        clock.
        """
        self.handle = self.handle._replace(
            pop_time_ms=pop_time_ms, invisible_duration_ms=invisible_duration_ms
        )
        self.until_ms = until_ms

    def settle(self) -> None:
        self.is_settled = True
