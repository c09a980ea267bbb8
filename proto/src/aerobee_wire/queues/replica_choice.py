"""Choose the replica from which a message queue is pulled.

This module does no I/O.

The replicas suggest the next replica in their answers. The master suggests a slave to a reader that
is far behind. The slave suggests the master to a reader that has nearly caught up. While no master
is registered, any slave is used.

In any case, one pull every MASTER_EVERY_MS goes to the master, because only the master knows of a
reset. Times are ms of one monotonic clock. Replicas are named by their ids at the name servers.
"""

from __future__ import annotations

from collections.abc import Collection

from aerobee_wire.route import MASTER_ID

MASTER_EVERY_MS = 20_000
AVOID_MS = 30_000  # for a slave that did not serve a pull


class ReplicaChoice:
    """Choose the replica for one queue and one reader."""

    def __init__(self) -> None:
        self._suggested = MASTER_ID
        self._at_master_ms = 0  # when the master last answered
        self._avoid_until_ms: dict[int, int] = {}

    def choose(self, ids: Collection[int], now_ms: int) -> int | None:
        """Return the id of the replica to pull from, or None if no replica should be used now.

        `ids` contains the registered replicas.
        """
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
        """Record an answer of a replica. `suggested` is the replica that the answer suggests."""
        self._suggested = suggested
        if replica_id == MASTER_ID:
            self._at_master_ms = now_ms

    def failed(self, replica_id: int, now_ms: int) -> None:
        """Record that a replica did not serve a pull. A slave is then avoided for AVOID_MS."""
        if replica_id != MASTER_ID:
            self._suggested = MASTER_ID
            self._avoid_until_ms[replica_id] = now_ms + AVOID_MS
