"""Limit the topics and groups that one caller creates by using them."""

from __future__ import annotations

from aerobee_broker.errors import TooManyCreations
from aerobee_chassis.clock import Clock
from aerobee_chassis.per_minute import PerMinute
from aerobee_wire.access.policies import address_of


class Creations:
    """Count creations by creator. Callers on this machine are not limited, unless they are users.

    `limit` is the most creations of one creator in a minute (maxAutoCreations).
    """

    def __init__(self, clock: Clock, limit: int) -> None:
        self._counts = PerMinute(clock, limit)

    def check(self, creator: str) -> None:
        """Count a creation. Raises TooManyCreations if the creator made too many.

        `creator` is the name of a user, or the "host:port" of a caller without one. It is empty for
        the broker itself, which is not limited.
        """
        address = address_of(creator)
        if not creator or (address is not None and address.is_loopback):
            return
        wait_ms = self._counts.count(creator if address is None else str(address))
        if wait_ms:
            raise TooManyCreations(creator, self._counts.limit, wait_ms)
