"""Keep the permission of this broker for producers and consumers, and its drain state.

The permission is `brokerPermission`, without the write permission while the broker drains.
"""

from __future__ import annotations

from typing import Any

from aerobee_broker.errors import NoPermission
from aerobee_broker.metadata.table import DataVersion, Table
from aerobee_chassis.clock import Clock
from aerobee_wire.route import READ, WRITE


class Drain(Table):
    """The drain state of this broker, saved in `brokerDrain.json`.

    `since_ms` is the wall-clock time at which draining began, or 0 if this broker does not drain.
    `stops` is True if it also drains because its process will be stopped. That is not saved.
    `refuses` is True while producers are refused. That begins after the name servers were notified.
    `refused_ms` is the monotonic time of the last refusal.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.since_ms = 0
        self.stops = False
        self.refuses = False
        self.refused_ms = 0

    @property
    def active(self) -> bool:
        return self.stops or bool(self.since_ms)

    @property
    def will_return(self) -> bool:
        """Return whether the broker drains only because its process will be stopped."""
        return self.stops and not self.since_ms

    def put(self, draining: bool) -> bool:
        """Start or end draining. Return False if the state is already the wanted one."""
        if draining == bool(self.since_ms):
            return False
        self.since_ms = self._clock.now_ms() if draining else 0
        self._changed()
        return True

    def begin_stop(self) -> None:
        """Drain until the process ends."""
        self.stops = True

    def take_effect(self) -> None:
        self.refuses = self.active

    def refuse(self) -> None:
        """Refuse a producer. Raises NoPermission."""
        self.refused_ms = self._clock.monotonic_ms()
        raise NoPermission(
            "this broker stops: send to another"
            if self.stops
            else "this broker drains (aerobee broker drain): send to another"
        )

    def to_json(self) -> dict[str, Any]:
        return {"dataVersion": self.version.to_json(), "drainingSince": self.since_ms}

    def load(self, content: dict[str, Any]) -> None:
        self.since_ms = int(content.get("drainingSince", 0))
        self.take_effect()
        self.version = DataVersion.from_json(content.get("dataVersion") or {})


class BrokerPermission:
    """Check the permission of this broker.

    `configured` is RocketMQ's `brokerPermission`: 4 to read plus 2 to write.
    """

    def __init__(self, configured: int, drain: Drain) -> None:
        self._configured = configured
        self._drain = drain

    def bits(self) -> int:
        """Return the permission bits to register. A topic gets at most these bits."""
        return self._configured & ~WRITE if self._drain.active else self._configured

    def check_send(self) -> None:
        """Check that producers may send to this broker. Raises NoPermission."""
        self.check_send_back()
        if self._drain.refuses:
            self._drain.refuse()

    def check_send_back(self) -> None:
        """Check that consumers may send messages back. Raises NoPermission.

        They may also do so while the broker drains.
        """
        if not self._configured & WRITE:
            raise NoPermission(
                "this broker does not accept messages (brokerPermission): send to another",
                "brokerPermission",
            )

    def check_read(self) -> None:
        """Check that consumers may pull and pop. Raises NoPermission."""
        if not self._configured & READ:
            raise NoPermission(
                "this broker gives no messages (brokerPermission): ask a replica",
                "brokerPermission",
            )
