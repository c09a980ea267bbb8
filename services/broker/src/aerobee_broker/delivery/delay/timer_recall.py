"""RecallMessage: cancels a message that waits for its delivery time.

To recall a message, the broker appends a marker record to the timer queue. The recall takes effect
when the marker is durable.
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

SAME_KEY = 64  # the number of messages with one unique key that a recall checks at most


@dataclass(frozen=True, slots=True)
class TimerRecall:
    log: DurableLog
    table: TimerTable
    delivery: TimerDelivery
    clock: Clock
    enabled: bool

    async def recall(self, topic: str, deliver_ms: int, unique_key: str) -> None:
        """Recall the message with this topic, delivery time (ms since the epoch) and unique key.

        Returns when the recall is durable. Raises NoPermission if recalls are disabled,
        NotRecalled, and the errors of the store. After FlushTimeout, the recall may or may not take
        effect.
        """
        if not self.enabled:
            raise NoPermission(
                "this broker recalls no messages (recallMessageEnable is off): it is delivered",
                "recallMessageEnable",
            )
        while True:
            # After this, the index contains every message whose send was acknowledged, and every
            # message that was moved to the end of the queue.
            await self.log.visible()
            keys = self._find(topic, deliver_ms, unique_key)
            # There are several keys if a producer sent the message again after a timeout.
            recalled = [key for key in keys if self.table.recall(key)]
            if recalled or not any(map(self.table.is_being_recalled, keys)):
                break
            await asyncio.sleep(0)  # the message is being moved, or another recall is in progress
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
        """Return the keys (see TimerTable) of all matching messages, including delivered ones."""
        found = self.log.store.query(
            names.TIMER_TOPIC, unique_key, unique=True, max_messages=SAME_KEY
        )
        return [
            key_of(deliver_ms, record.queue_offset)
            for record in found
            if record.properties.get(props.REAL_TOPIC) == topic
            and record.properties.get(props.TIMER_OUT_MS) == str(deliver_ms)
        ]
