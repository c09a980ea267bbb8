"""Replicas as a commit sees them, moved by the test."""

from __future__ import annotations

from aerobee_broker.commit.commit import Watermarks
from aerobee_broker.errors import TooFewReplicas


class ScriptedReplicas:
    """One replica. `has`: up to where it is in sync (physical offset); `enough` False: a send would
    need more replicas, what is none goes on; `waits` False: as with asynchronous replication, only
    what is shown waits for the replica.
    """

    def __init__(self) -> None:
        self.ship_at_once = True
        self.has = 0
        self.enough = True
        self.waits = True
        self.slaves: tuple[int, ...] = ()  # that may be read
        self.reported: list[int] = []
        self.shows = True  # what the replica has
        self._sent = self._visible = 0

    def written(self, end_offset: int) -> None:
        self.reported.append(end_offset)

    def watermarks(self, own: int, flushed: int) -> Watermarks:
        settled = min(own, self.has) if self.waits else own
        if self.enough:
            self._sent = settled
        confirmed = min(flushed, self.has)
        self._visible = confirmed if self.shows else self._visible
        return Watermarks(self._sent, settled, confirmed, self._visible)

    def check_sends(self) -> None:
        if not self.enough:
            raise TooFewReplicas(1, 2, "broker-a/1")

    def slaves_at(self, physical_offset: int) -> tuple[int, ...]:
        return self.slaves
