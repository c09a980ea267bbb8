"""A message on lease: what was received, and the right to it for a while."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from aerobee_client.message import ReceivedMessage
from aerobee_wire.handles import receipt_handle
from aerobee_wire.handles.receipt_handle import ReceiptHandle

if TYPE_CHECKING:
    from aerobee_wire.record import Record


class LeasedMessage(ReceivedMessage):
    """A received message that nobody else of its group gets until its lease ends.

    `handle`: the lease as it is now; renewals give it another end. `is_settled`: it was
    acknowledged or dead-lettered by this client. `reconsume_times`: deliveries before this one.
    """

    __slots__ = ("handle", "is_settled", "until_ms")

    def __init__(self, record: Record, handle: ReceiptHandle, until_ms: int) -> None:
        """`until_ms`: when the lease ends, of the client's monotonic clock."""
        super().__init__(record, handle.broker_name)
        self.reconsume_times = handle.delivery_attempt - 1
        self.handle = handle
        self.until_ms = until_ms
        self.is_settled = False

    @property
    def delivery_attempt(self) -> int:
        """1 at the first delivery."""
        return self.handle.delivery_attempt

    @property
    def receipt_handle(self) -> str:
        """The lease as text: another process of the group may settle it, or the proxy's clients."""
        return receipt_handle.encode(self.handle)

    @property
    def leased_until(self) -> datetime:
        """When the lease ends, by the broker's clock."""
        return datetime.fromtimestamp(self.handle.expires_ms / 1_000, UTC)

    def extend(self, pop_time_ms: int, invisible_duration_ms: int, until_ms: int) -> None:
        """The lease has another end: `invisible_duration_ms` after `pop_time_ms` of the broker's
        clock, `until_ms` of the client's monotonic clock."""
        self.handle = self.handle._replace(
            pop_time_ms=pop_time_ms, invisible_duration_ms=invisible_duration_ms
        )
        self.until_ms = until_ms

    def settle(self) -> None:
        self.is_settled = True
