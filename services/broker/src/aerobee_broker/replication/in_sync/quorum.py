"""Define how many copies the messages that a master acknowledges have.

The class is pure. A group without etcd needs it to decide whether a promotion loses acknowledged
messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Quorum(NamedTuple):
    """The requirement of a master.

    - `copies`: the number of replicas in the group (totalReplicas). Their numbers are lower than
      it. It is 1 if the master does not know it.
    - `required`: the number of these replicas that have an acknowledged message, at least.
    """

    copies: int
    required: int

    def counts(self, replica_id: int) -> bool:
        """Return whether a replica with this number may hold one of the copies."""
        return self.copies < 2 or replica_id < self.copies

    def is_met_by(self, replica_ids: Iterable[int], lacking: int = 0) -> bool:
        """Return whether at most `lacking` of the required replicas are missing among these."""
        return sum(map(self.counts, replica_ids)) >= self.required - lacking
