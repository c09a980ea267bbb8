"""The timer queue, queue 0 of rmq_sys_wheel_timer, in which messages wait for their delivery time.

The delivery time is in the property TIMER_OUT_MS of the waiting message. It is also stored as the
tags code of the message in the consume queue. A recall is a record of the same queue. Its tags code
is -1 minus the queue offset of the recalled message. The broker can therefore find the waiting
messages and their times by reading only the consume queue.

Unlike in RocketMQ, times are exact to the millisecond, and are not rounded to an earlier second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized

from aerobee_broker.delivery.delay.levels import redirected
from aerobee_broker.errors import MessageIllegal, TooManyTimers
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import topics as names

QUEUE_ID = 0
RECALL_TAG = "_RECALL_TAG_"
# This property does not exist in RocketMQ, whose markers contain only the message's unique key.
RECALLED_OFFSET = "TIMER_DEL_QUEUE_OFFSET"
_RECALLED_OFFSET_NAME = b"TIMER_DEL_QUEUE_OFFSET\x01"
_OUT_NAME = b"TIMER_OUT_MS\x01"
_RECALL_BODY = b"0"

# The properties that request a time, in the order of their precedence.
TIME_PROPERTIES = (props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS)
# Milliseconds per unit of the properties that are relative to now.
_MILLISECONDS = {props.TIMER_DELAY_SEC: 1_000, props.TIMER_DELAY_MS: 1}


class TimerQueue:
    """Redirects messages with a delivery time to the timer queue, within limits.

    `waiting` contains the messages that already wait. Their number is limited to `max_messages`.
    `on_accept` is called with the topic and the delay (ms) of each message that is redirected.
    """

    def __init__(
        self,
        waiting: Sized,
        *,
        max_delay_ms: int,
        max_messages: int,
        on_accept: Callable[[str, int], None] = lambda topic, delay_ms: None,
    ) -> None:
        # Whether a message was redirected here since the last call of `arrived`.
        self.unconfirmed = False
        self._waiting = waiting
        self._max_delay_ms = max_delay_ms
        self._max_messages = max_messages
        self._on_accept = on_accept

    def use(self, *, max_delay_ms: int, max_messages: int) -> None:
        """Use other limits, for messages that are sent from now on."""
        self._max_delay_ms, self._max_messages = max_delay_ms, max_messages

    def arrived(self) -> None:
        """Record that the messages redirected to the timer queue are visible."""
        self.unconfirmed = False

    def by_time(
        self, message: NewMessage, properties: dict[str, str], now_ms: int
    ) -> NewMessage | None:
        """Return a message redirected to the timer queue until its delivery time.

        `properties` are the decoded properties of the message. Returns None if they contain no
        delivery time, or one in the past. Raises MessageIllegal, TooManyTimers.
        """
        due_ms = self.due_ms(properties, now_ms)
        return None if due_ms is None else self._until(message, properties, due_ms, now_ms)

    def by_delay(
        self, message: NewMessage, properties: dict[str, str], delay_ms: int, now_ms: int
    ) -> NewMessage:
        """Return a message redirected to the timer queue for `delay_ms` from now on.

        Delivery times in the decoded `properties` are ignored. Raises MessageIllegal,
        TooManyTimers.
        """
        self._check_delay(delay_ms)
        return self._until(message, properties, now_ms + delay_ms, now_ms)

    def _until(
        self, message: NewMessage, properties: dict[str, str], due_ms: int, now_ms: int
    ) -> NewMessage:
        if len(self._waiting) >= self._max_messages:
            raise TooManyTimers(self._max_messages)
        self.unconfirmed = True
        self._on_accept(message.topic, due_ms - now_ms)
        properties[props.TIMER_OUT_MS] = str(due_ms)
        return redirected(message, properties, names.TIMER_TOPIC, QUEUE_ID)

    def due_ms(self, properties: Mapping[str, str], now_ms: int) -> int | None:
        """Return the requested delivery time of a message, in milliseconds since the epoch.

        Returns None if the message requests no delivery time, or one in the past. Raises
        MessageIllegal.
        """
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
    """Return the tags code to store in the consume queue for a record of rmq_sys_wheel_timer.

    For a waiting message, it is the delivery time. For a recall, it is -1 minus the queue offset of
    the recalled message. A record without a delivery time is due when it is stored.
    """
    due = props.whole_number(props.get(properties, _OUT_NAME) or b"")
    if due is not None and due > 0:
        return due
    # Check this second, because a sender may have set a property of this name on its message.
    offset = props.whole_number(props.get(properties, _RECALLED_OFFSET_NAME) or b"")
    return store_timestamp_ms if offset is None or offset < 0 else -1 - offset


def recalled_offset(code: int) -> int:
    """Return the queue offset of the recalled message from the tags code of a recall."""
    return -1 - code


def recall_marker(topic: str, unique_key: str, queue_offset: int, now_ms: int) -> NewMessage:
    """Return the record that recalls the message at a queue offset of the timer queue."""
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
