"""Remember how far the logs of replicas went, in groups without etcd.

A replica whose disk is an older copy lacks messages that it has confirmed. It cannot know that by
itself. Its own records of before show it. They are kept in memory: each replica of the group sends
all records that it knows, so a name server that has started again gets them back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

MAX_STORES = 64  # of a group; a store gets another id only if its disk is replaced
MAX_GROUPS = 4_096


@dataclass(frozen=True, slots=True, order=True)
class LogRecord:
    """A record. The higher of two records of one store is the newer one."""

    generation: int
    end_offset: int
    epoch: int

    def followed_by(self, other: LogRecord) -> LogRecord:
        """Return the record to keep. A store that knows a lower epoch than before went back."""
        return replace(other, epoch=max(self.epoch, other.epoch)) if other > self else self


class LogRecords:
    """Keep the newest record of each store. The records that were sent last stay the longest."""

    def __init__(self) -> None:
        self._groups: OrderedDict[tuple[str, str], OrderedDict[str, LogRecord]] = OrderedDict()

    def record(
        self, cluster: str, broker_name: str, records: Iterable[tuple[str, LogRecord]]
    ) -> dict[str, LogRecord]:
        """Merge records, by store id, into those of a group. Return all records of the group."""
        group = self._groups.setdefault((cluster, broker_name), OrderedDict())
        self._groups.move_to_end((cluster, broker_name))
        for store_id, record in records:
            known = group.get(store_id, record)
            group[store_id] = known.followed_by(record)
            group.move_to_end(store_id)
        while len(group) > MAX_STORES:
            group.popitem(last=False)
        while len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
        return dict(group)
