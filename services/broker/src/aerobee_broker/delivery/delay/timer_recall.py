"""RecallMessage: takes back a message that waits for a time of its own.

The recall is a marker record at the end of the timer queue. It holds once the marker is durable.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.timer_delivery import TimerDelivery
from aerobee_broker.delivery.delay.timer_format import recall_marker
from aerobee_broker.delivery.delay.timer_table import TimerTable, key_of, offset_of
from aerobee_broker.errors import NoPermission, NotRecalled
from aerobee_chassis.clock import Clock
from aerobee_wire import properties as props
from aerobee_wire import topics as names

SAME_KEY = 64  # messages of one unique key that a recall looks at


@dataclass(frozen=True, slots=True)
class TimerRecall:
    log: DurableLog
    table: TimerTable
    delivery: TimerDelivery
    clock: Clock
    enabled: bool

    async def recall(self, topic: str, deliver_ms: int, unique_key: str) -> None:
        """Takes back the message of `topic` that is due at `deliver_ms` (since the epoch) and has
        this unique key; returns when the recall is durable. Raises NoPermission where recalls are
        off; NotRecalled; what the store raises; FlushTimeout: whether the recall holds is not known
        yet."""
        if not self.enabled:
            raise NoPermission(
                "this broker recalls no messages (recallMessageEnable is off): it is delivered",
                "recallMessageEnable",
            )
        while True:
            # Then the index knows every message that was acknowledged, or moved in the queue.
            await self.log.shown()
            keys = self._find(topic, deliver_ms, unique_key)
            # Several when a producer has sent the message again after a timeout.
            recalled = [key for key in keys if self.table.recall(key)]
            if recalled or not any(map(self.table.is_being_recalled, keys)):
                break
            await asyncio.sleep(0)  # it is being moved, or another recall of it is under way
        if not recalled:
            if keys:
                raise NotRecalled("it was delivered or recalled before")
            raise NotRecalled(
                "no such message waits here (the broker finds it by messageIndexEnable)",
                "messageIndexEnable",
            )
        now = self.clock.now_ms()
        markers = [recall_marker(topic, unique_key, offset_of(key), now) for key in recalled]
        await self.delivery.store_recalls(markers, recalled)

    def _find(self, topic: str, deliver_ms: int, unique_key: str) -> list[int]:
        """The keys of the messages that a recall means, whether they still wait or not."""
        found = self.log.store.query(
            names.TIMER_TOPIC, unique_key, unique=True, max_messages=SAME_KEY
        )
        return [
            key_of(deliver_ms, record.queue_offset)
            for record in found
            if record.properties.get(props.REAL_TOPIC) == topic
            and record.properties.get(props.TIMER_OUT_MS) == str(deliver_ms)
        ]
