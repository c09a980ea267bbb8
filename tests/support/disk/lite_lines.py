"""The units of one queue of a parent, in memory, and what a LiteQueue must say of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aerobee_broker.disk import Disk
from aerobee_broker.store.lite.expirations import Expirations
from aerobee_broker.store.lite.lite_queue import LiteQueue, UnitSource
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.messages import Unit

FOLDER = Path("/data/store/lite/parent/0")
_SIZE = 100  # of a record


@dataclass
class Units:
    """The code of each message of the queue; those below `low` have expired."""

    codes: list[int] = field(default_factory=list)
    low: int = 0

    def source(self) -> UnitSource:
        return UnitSource(lambda: self.low, lambda: len(self.codes), self._units)

    def _units(self, first: int, count: int) -> list[Unit]:
        if first < self.low:
            return []
        return [self.unit(at) for at in range(first, min(first + count, len(self.codes)))]

    def unit(self, at: int) -> Unit:
        return at * _SIZE, _SIZE, self.codes[at]

    def add(self, codes: list[int]) -> list[Unit]:
        first = len(self.codes)
        self.codes += codes
        return [self.unit(at) for at in range(first, len(self.codes))]

    def offsets(self, code: int, queue_offset: int = 0) -> list[int]:
        low = max(queue_offset, self.low)
        return [at for at, found in enumerate(self.codes) if found == code and at >= low]


def opened(units: Units, disk: Disk, expirations: Expirations | None = None) -> LiteQueue:
    queue = LiteQueue(disk, FOLDER, OpenFiles(disk, 4), units.source(), expirations)
    queue.open()
    return queue
