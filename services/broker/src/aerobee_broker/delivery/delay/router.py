"""Chooses the topic in which a delayed message waits: SCHEDULE_TOPIC_XXXX or the timer topic.

Messages with a delay level wait in the first topic, and messages with a delivery time in the
second. The rules are RocketMQ's. They apply when a message is sent, and when a half message is
committed. If a message has a delay level above 0, its properties with a time are removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee_broker.delivery.delay.levels import DelayQueues
from aerobee_broker.delivery.delay.timer_format import TIME_PROPERTIES, TimerQueue
from aerobee_broker.errors import MessageIllegal
from aerobee_broker.store.messages import NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire import properties as props


class DelayRouter:
    def __init__(self, queues: DelayQueues, timers: TimerQueue, clock: Clock) -> None:
        self.queues = queues
        self._timers = timers
        self._clock = clock

    def route(self, message: NewMessage, properties: dict[str, str]) -> NewMessage | None:
        """Return the record of a delayed message, for the topic in which the message waits.

        `properties` are the decoded properties of `message`. Returns None if they contain no delay.
        Raises MessageIllegal, TooManyTimers.
        """
        level = _delay_level(properties)
        if level <= 0:
            return self._timers.by_time(message, properties, self._clock.now_ms())
        for name in TIME_PROPERTIES:
            properties.pop(name, None)
        return self.queues.by_level(message, properties, level)

    def after(self, message: NewMessage, properties: dict[str, str], delay_ms: int) -> NewMessage:
        """Return the record of a message that waits for `delay_ms`, which must be above 0.

        Delays in the decoded `properties` of the message are ignored. Raises MessageIllegal,
        TooManyTimers.
        """
        return self._timers.by_delay(message, properties, delay_ms, self._clock.now_ms())

    def check(self, properties: Mapping[str, str]) -> None:
        """Raise MessageIllegal if the properties contain an invalid delay.

        A half message is checked in this way when it is sent, before its delay applies.
        """
        if _delay_level(properties) <= 0:
            self._timers.due_ms(properties, self._clock.now_ms())

    def has_unconfirmed(self) -> bool:
        """Return whether a message was redirected whose record may not be visible yet."""
        return self.queues.unconfirmed or self._timers.unconfirmed


def _delay_level(properties: Mapping[str, str]) -> int:
    """Return the delay level in the properties of a message, or 0 if there is none.

    Raises MessageIllegal if the property DELAY is not a whole number.
    """
    value = properties.get(props.DELAY, "0")
    level = props.whole_number(value)
    if level is None:
        problem = f"property DELAY is a delay level from 1 to 18, not {value[:32]!r}"
        raise MessageIllegal(problem, props.DELAY)
    return level
