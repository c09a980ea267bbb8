"""The timer queue, queue 0 of rmq_sys_wheel_timer, where messages wait for a time of their own. No
clock, no loop.

The due time stands in the waiting message (TIMER_OUT_MS) and, for speed, in the tags code of its
consume-queue unit. A recall is a record of the same queue: the tags code of its unit is -1 minus
the queue offset of the message that is recalled. So the units alone tell which messages wait, and
until when.

Differs from RocketMQ: times are exact to the millisecond, never rounded to an earlier second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized

from aerobee_broker.delivery.delay.destination import redirected
from aerobee_broker.errors import MessageIllegal, TooManyTimers
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import topics as names

QUEUE_ID = 0
RECALL_TAG = "_RECALL_TAG_"
# Ours: RocketMQ's markers name the message by its unique key alone.
RECALLED_OFFSET = "TIMER_DEL_QUEUE_OFFSET"
_RECALLED_OFFSET_NAME = b"TIMER_DEL_QUEUE_OFFSET\x01"
_OUT_NAME = b"TIMER_OUT_MS\x01"
_RECALL_BODY = b"0"

# The properties that ask for a time, in the order of their precedence.
TIME_PROPERTIES = (props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS)
_MILLISECONDS = {props.TIMER_DELAY_SEC: 1_000, props.TIMER_DELAY_MS: 1}  # of those from now on


class TimerQueue:
    """Admits messages to the timer queue. `waiting`: those that wait already, for the limit
    `max_messages`."""

    def __init__(self, waiting: Sized, *, max_delay_ms: int, max_messages: int) -> None:
        # Whether a message was routed here since the last arrival was confirmed.
        self.unconfirmed = False
        self._waiting = waiting
        self._max_delay_ms = max_delay_ms
        self._max_messages = max_messages

    def arrived(self) -> None:
        """The messages that were routed here are confirmed."""
        self.unconfirmed = False

    def by_time(
        self, message: NewMessage, properties: dict[str, str], now_ms: int
    ) -> NewMessage | None:
        """`message` as it waits for the time that its decoded `properties` ask for; None when they
        ask for none, or for one that is past. Raises MessageIllegal, TooManyTimers."""
        due_ms = self.due_ms(properties, now_ms)
        return None if due_ms is None else self._until(message, properties, due_ms)

    def by_delay(
        self, message: NewMessage, properties: dict[str, str], delay_ms: int, now_ms: int
    ) -> NewMessage:
        """`message` as it waits for `delay_ms` from now on, whatever its properties ask for. Raises
        MessageIllegal, TooManyTimers."""
        self._check_delay(delay_ms)
        return self._until(message, properties, now_ms + delay_ms)

    def _until(self, message: NewMessage, properties: dict[str, str], due_ms: int) -> NewMessage:
        if len(self._waiting) >= self._max_messages:
            raise TooManyTimers(self._max_messages)
        self.unconfirmed = True
        properties[props.TIMER_OUT_MS] = str(due_ms)
        return redirected(message, properties, names.TIMER_TOPIC, QUEUE_ID)

    def due_ms(self, properties: Mapping[str, str], now_ms: int) -> int | None:
        """The time that a message asks for, in milliseconds since the epoch; None when it asks for
        none, or for one that is past. Raises MessageIllegal."""
        due_ms = _requested_time(properties, now_ms)
        if due_ms is None or due_ms <= now_ms or props.TIMER_OUT_MS in properties:
            return None
        self._check_delay(due_ms - now_ms)
        return due_ms

    def _check_delay(self, delay_ms: int) -> None:
        if delay_ms > self._max_delay_ms:
            raise MessageIllegal(
                f"the message asks for a delay of {delay_ms} ms: at most {self._max_delay_ms} "
                "(timerMaxDelaySec)",
                "timerMaxDelaySec",
            )


def _requested_time(properties: Mapping[str, str], now_ms: int) -> int | None:
    for name in TIME_PROPERTIES:
        value = properties.get(name)
        if value is None:
            continue
        number = props.whole_number(value)
        if number is None:
            problem = f"property {name} is a whole number, not {value[:32]!r}"
            raise MessageIllegal(problem, name)
        factor = _MILLISECONDS.get(name)
        return number if factor is None else now_ms + number * factor
    return None


def unit_code(properties: bytes, store_timestamp_ms: int) -> int:
    """The tags code of a consume-queue unit of rmq_sys_wheel_timer: the due time, or for a recall
    -1 minus the queue offset of the message that it recalls. A record that names no time is due
    when it is stored."""
    due = props.whole_number(props.get(properties, _OUT_NAME) or b"")
    if due is not None and due > 0:
        return due
    # Looked at second: a sender may have given a waiting message a property of this name.
    offset = props.whole_number(props.get(properties, _RECALLED_OFFSET_NAME) or b"")
    return store_timestamp_ms if offset is None or offset < 0 else -1 - offset


def recalled_offset(code: int) -> int:
    """The queue offset that a tags code below 0 stands for."""
    return -1 - code


def recall_marker(topic: str, unique_key: str, queue_offset: int, now_ms: int) -> NewMessage:
    """The record that recalls the message at a queue offset."""
    properties = {
        props.TAGS: RECALL_TAG,
        props.TIMER_DELETE_UNIQUE_KEY: f"{topic}+{unique_key}",
        RECALLED_OFFSET: str(queue_offset),
    }
    return NewMessage(
        names.TIMER_TOPIC,
        QUEUE_ID,
        _RECALL_BODY,
        props.encode(properties),
        born_timestamp_ms=now_ms,
    )
