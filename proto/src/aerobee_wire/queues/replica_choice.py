"""From which replica of a broker a message queue is pulled, by what the replicas suggest.

The master suggests a slave to a reader that is far behind, and the slave the master to one that has
come near. While no master is registered any slave will do. Every MASTER_EVERY_MS one pull goes to
the master all the same, which alone knows of a reset. Pure: times are of one monotonic clock, in
ms; replicas are named by their ids, as name servers have them.
"""

from __future__ import annotations

from collections.abc import Collection

MASTER_ID = 0
MASTER_EVERY_MS = 20_000
AVOID_MS = 30_000  # a slave that did not serve a pull


class ReplicaChoice:
    """Of one queue and one reader."""

    def __init__(self) -> None:
        self._suggested = MASTER_ID
        self._at_master_ms = 0  # when it answered last
        self._avoid_until_ms: dict[int, int] = {}

    def choose(self, ids: Collection[int], now_ms: int) -> int | None:
        """`ids`: the replicas that are registered. None: none of them is to be asked now."""
        slaves = [
            each
            for each in sorted(ids)
            if each != MASTER_ID and self._avoid_until_ms.get(each, now_ms) <= now_ms
        ]
        if MASTER_ID not in ids:
            return self._suggested if self._suggested in slaves else next(iter(slaves), None)
        is_due = now_ms - self._at_master_ms >= MASTER_EVERY_MS
        return self._suggested if self._suggested in slaves and not is_due else MASTER_ID

    def answered(self, replica_id: int, suggested: int, now_ms: int) -> None:
        """`suggested`: in the answer of this replica."""
        self._suggested = suggested
        if replica_id == MASTER_ID:
            self._at_master_ms = now_ms

    def failed(self, replica_id: int, now_ms: int) -> None:
        """A slave that does not serve the pull is avoided for a while."""
        if replica_id != MASTER_ID:
            self._suggested = MASTER_ID
            self._avoid_until_ms[replica_id] = now_ms + AVOID_MS
