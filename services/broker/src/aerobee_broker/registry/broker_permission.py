"""What this broker does for producers and consumers: `brokerPermission`, less the write permission
while it drains.
"""

from __future__ import annotations

from aerobee_broker.errors import NoPermission
from aerobee_broker.metadata.drain import Drain
from aerobee_broker.metadata.topics import READ, WRITE


class BrokerPermission:
    """`configured`: bits of RocketMQ's `brokerPermission`, 4 to read and 2 to write."""

    def __init__(self, configured: int, drain: Drain) -> None:
        self._configured = configured
        self._drain = drain

    def bits(self) -> int:
        """As they are registered with the name servers: topics have no more than these."""
        return self._configured & ~WRITE if self._drain.since_ms else self._configured

    def check_send(self) -> None:
        """Whether producers may send here. Raises NoPermission."""
        self.check_send_back()
        if self._drain.refuses:
            raise NoPermission("this broker drains (aerobee broker drain): send to another")

    def check_send_back(self) -> None:
        """Whether consumers may send back, which they may while the broker drains. Raises
        NoPermission."""
        if not self._configured & WRITE:
            raise NoPermission(
                "this broker takes no messages (brokerPermission): send to another",
                "brokerPermission",
            )

    def check_read(self) -> None:
        """Whether consumers may pull and pop. Raises NoPermission."""
        if not self._configured & READ:
            raise NoPermission(
                "this broker gives no messages (brokerPermission): ask a replica",
                "brokerPermission",
            )
