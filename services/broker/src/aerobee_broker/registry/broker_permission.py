"""The permission of this broker for producers and consumers.

It is `brokerPermission`, without the write permission while the broker drains.
"""

from __future__ import annotations

from aerobee_broker.errors import NoPermission
from aerobee_broker.metadata.drain import Drain
from aerobee_broker.metadata.topics import READ, WRITE


class BrokerPermission:
    """The permission. `configured`: RocketMQ's `brokerPermission`, 4 to read plus 2 to write."""

    def __init__(self, configured: int, drain: Drain) -> None:
        self._configured = configured
        self._drain = drain

    def bits(self) -> int:
        """Return the bits to register with the name servers. Topics do not get more than these."""
        return self._configured & ~WRITE if self._drain.since_ms else self._configured

    def check_send(self) -> None:
        """Check that producers may send to this broker. Raises NoPermission."""
        self.check_send_back()
        if self._drain.refuses:
            raise NoPermission("this broker drains (aerobee broker drain): send to another")

    def check_send_back(self) -> None:
        """Check that consumers may send back, also while the broker drains. Raises NoPermission."""
        if not self._configured & WRITE:
            raise NoPermission(
                "this broker takes no messages (brokerPermission): send to another",
                "brokerPermission",
            )

    def check_read(self) -> None:
        """Check that consumers may pull and pop. Raises NoPermission."""
        if not self._configured & READ:
            raise NoPermission(
                "this broker gives no messages (brokerPermission): ask a replica",
                "brokerPermission",
            )
