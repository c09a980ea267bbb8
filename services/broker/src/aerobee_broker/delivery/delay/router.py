"""Choose the topic of a message with a delay: that of the delay levels or that of the timers.

Follows RocketMQ's rules. Used when a message is sent, and when a half message is committed. A delay
level above 0 takes precedence: the properties with a time are then removed.
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
        """Return `message` waiting for the delay in its decoded `properties`; None without a delay.

        Raises MessageIllegal, TooManyTimers.
        """
        level = _delay_level(properties)
        if level <= 0:
            return self._timers.by_time(message, properties, self._clock.now_ms())
        for name in TIME_PROPERTIES:
            properties.pop(name, None)
        return self.queues.by_level(message, properties, level)

    def after(self, message: NewMessage, properties: dict[str, str], delay_ms: int) -> NewMessage:
        """Return `message` waiting for `delay_ms` (above 0), regardless of its `properties`.

        Raises MessageIllegal, TooManyTimers.
        """
        return self._timers.by_delay(message, properties, delay_ms, self._clock.now_ms())

    def check(self, properties: Mapping[str, str]) -> None:
        """Raise MessageIllegal like `route`.

        A half message is thus rejected when it is sent, not when it is committed.
        """
        if _delay_level(properties) <= 0:
            self._timers.due_ms(properties, self._clock.now_ms())

    def has_unconfirmed(self) -> bool:
        """Return whether the arrival of a routed message at its queue is not confirmed yet."""
        return self.queues.unconfirmed or self._timers.unconfirmed


def _delay_level(properties: Mapping[str, str]) -> int:
    """Return the delay level; 0 if there is none.

    Raises MessageIllegal if the property DELAY is not a whole number.
    """
    value = properties.get(props.DELAY, "0")
    level = props.whole_number(value)
    if level is None:
        problem = f"property DELAY is a delay level from 1 to 18, not {value[:32]!r}"
        raise MessageIllegal(problem, props.DELAY)
    return level
