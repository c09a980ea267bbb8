"""How a message waits for a time of its own: in queue 0 of rmq_sys_wheel_timer. No clock, no loop.

The due time stands in the waiting message (TIMER_OUT_MS) and, for speed, in its consume-queue unit
in the place of the hash of the tags. A recall is a record in the same queue: the tags code of its
unit is -1 minus the queue offset of the message that is taken back. So the units alone say what
waits, and until when.

Differs from RocketMQ: times are exact to the millisecond, never rounded to an earlier second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

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

# By which a message asks for a time; the first that is there counts.
RELATIVE = ((props.TIMER_DELAY_SEC, 1_000), (props.TIMER_DELAY_MS, 1))
ASKING = (props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS, props.TIMER_DELIVER_MS)


class TimerQueue:
    """`waiting`: how many messages wait; set once the store is open, which needs `unit_code` to
    open."""

    def __init__(self, *, max_delay_ms: int, max_messages: int) -> None:
        self.waiting: Callable[[], int] = lambda: 0
        # Whether a message was filed here that delivery does not see yet.
        self.unseen = False
        self._max_delay_ms = max_delay_ms
        self._max_messages = max_messages

    def filed(
        self, message: NewMessage, properties: dict[str, str], now_ms: int
    ) -> NewMessage | None:
        """`message` as it waits for the time that its decoded `properties` ask for; None when they
        ask for none, or for one that is past. Raises MessageIllegal, TooManyTimers."""
        due_ms = self.due_ms(properties, now_ms)
        if due_ms is None:
            return None
        if self.waiting() >= self._max_messages:
            raise TooManyTimers(self._max_messages)
        self.unseen = True
        properties[props.TIMER_OUT_MS] = str(due_ms)
        properties[props.REAL_TOPIC] = message.topic
        properties[props.REAL_QUEUE_ID] = str(message.queue_id)
        return replace(
            message,
            topic=names.TIMER_TOPIC,
            queue_id=QUEUE_ID,
            properties=props.encode(properties),
        )

    def due_ms(self, properties: Mapping[str, str], now_ms: int) -> int | None:
        """The time that a message asks for, ahead of now; None: none. Raises MessageIllegal."""
        due_ms = _asked(properties, now_ms)
        if due_ms is None or due_ms <= now_ms or props.TIMER_OUT_MS in properties:
            return None
        if due_ms - now_ms > self._max_delay_ms:
            raise MessageIllegal(
                f"the message asks for a delay of {due_ms - now_ms} ms: at most "
                f"{self._max_delay_ms} (timerMaxDelaySec)"
            )
        return due_ms


def _asked(properties: Mapping[str, str], now_ms: int) -> int | None:
    """The due time in milliseconds since the epoch. RocketMQ's precedence."""
    for name in ASKING:
        value = properties.get(name)
        if value is None:
            continue
        number = props.whole_number(value)
        if number is None:
            raise MessageIllegal(f"property {name} is a whole number, not {value[:32]!r}")
        factor = dict(RELATIVE).get(name)
        return number if factor is None else now_ms + number * factor
    return None


def unit_code(properties: bytes, store_timestamp_ms: int) -> int:
    """What stands in the consume queue in the place of the hash of the tags: the due time, or which
    message a recall takes back."""
    due = props.whole_number(props.get(properties, _OUT_NAME) or b"")
    if due is not None and due > 0:
        return due
    # Only now: a sender may have given a waiting message a property of this name.
    offset = props.whole_number(props.get(properties, _RECALLED_OFFSET_NAME) or b"")
    return store_timestamp_ms if offset is None or offset < 0 else -1 - offset


def recalled_offset(code: int) -> int:
    """The queue offset that a code below 0 stands for."""
    return -1 - code


def recall_marker(topic: str, unique_key: str, queue_offset: int, now_ms: int) -> NewMessage:
    """The record that takes back the message at a queue offset."""
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
