"""The delivery progress of each queue of delayed messages: `delayOffset.json`.

The file is written only after the delivered copies are durable. A crash loses the last updates, and
those messages are delivered twice.
"""

from __future__ import annotations

from typing import Any

from aerobee_broker.metadata.data_version import DataVersion
from aerobee_broker.metadata.table import Table
from aerobee_chassis.clock import Clock

_UPDATES_PER_VERSION = 200


class DelayOffsets(Table):
    """Queue id of SCHEDULE_TOPIC_XXXX → queue offset of the next message to deliver.

    The file is keyed by delay level, which is queue id + 1.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.offsets: dict[int, int] = {}

    def get(self, queue_id: int) -> int:
        return self.offsets.get(queue_id, 0)

    def put(self, queue_id: int, queue_offset: int) -> None:
        if self.offsets.get(queue_id) != queue_offset:
            self.offsets[queue_id] = queue_offset
            self.revision += 1
            if self.revision % _UPDATES_PER_VERSION == 0:
                self.version = self.version.next(self._clock.now_ms())

    def to_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.to_json(),
            "offsetTable": {str(queue + 1): at for queue, at in sorted(self.offsets.items())},
        }

    def load(self, content: dict[str, Any]) -> None:
        table = content.get("offsetTable") or {}
        self.offsets = {int(level) - 1: int(at) for level, at in table.items()}
        self.version = DataVersion.from_json(content.get("dataVersion") or {})
