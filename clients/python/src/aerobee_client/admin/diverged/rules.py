"""Decide which records that were cut off are sent again, to which topic, and with what properties.

Only records that are messages of clients are sent again. Pure.
"""

from __future__ import annotations

from enum import StrEnum

from aerobee_wire import properties as names
from aerobee_wire import topics
from aerobee_wire.record import Record


class Kind(StrEnum):
    """The kind of a record that was cut off.

    A HALF_MESSAGE is not sent again: only its producer knows whether to commit its transaction. An
    INTERNAL record belongs to a journal about other records. The log that remains has its own.
    """

    MESSAGE = "message"
    DELAYED = "delayed"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    HALF_MESSAGE = "half message"
    INTERNAL = "internal"


_WAITING = frozenset({topics.SCHEDULE_TOPIC, topics.TIMER_TOPIC})

# Properties of the path of a message through the log that was cut.
_DROPPED = frozenset(
    {
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.WAIT,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.POP_CHECK_POINT,
        names.FIRST_POP_TIME,
        names.TRANSACTION_PREPARED,
        names.TRANSACTION_PREPARED_QUEUE_OFFSET,
        names.TRANSACTION_CHECK_TIMES,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_OUT_MS,
    }
)


def kind_of(record: Record) -> Kind:
    topic, properties = record.topic, record.properties
    if topic == topics.HALF_TOPIC:
        return Kind.HALF_MESSAGE
    if topic in _WAITING:
        if names.TIMER_DELETE_UNIQUE_KEY in properties or names.REAL_TOPIC not in properties:
            return Kind.INTERNAL  # a recall, or a record that does not wait
        real = properties[names.REAL_TOPIC]
        return Kind.RETRY if topics.is_retry(real) else Kind.DELAYED
    if topics.is_system(topic):
        return Kind.INTERNAL
    if topics.is_retry(topic):
        return Kind.RETRY
    return Kind.DEAD_LETTER if topics.is_dead_letter(topic) else Kind.MESSAGE


def topic_of(record: Record) -> str:
    """Return the topic of the message, or its destination."""
    return record.properties.get(names.REAL_TOPIC) or record.topic


def queue_of(record: Record) -> int:
    """Return the queue of that topic."""
    real = names.whole_number(record.properties.get(names.REAL_QUEUE_ID, ""))
    waits = names.REAL_TOPIC in record.properties
    return real if waits and real is not None else record.queue_id


def message_id_of(record: Record) -> str:
    return record.properties.get(names.UNIQUE_KEY) or record.offset_message_id


def properties_for(record: Record, resent_from: str) -> dict[str, str]:
    """Return the properties to send.

    They are those of the message, its message id, and the place of the cut. A message that waits
    for a time keeps the time. A message that waits for a delay level waits again. A message that
    had already waited does not wait again.
    """
    given = record.properties
    kept = {name: value for name, value in given.items() if name not in _DROPPED}
    if record.topic == topics.TIMER_TOPIC and names.TIMER_OUT_MS in given:
        kept[names.TIMER_DELIVER_MS] = given[names.TIMER_OUT_MS]
    elif record.topic not in _WAITING:
        kept.pop(names.TIMER_DELIVER_MS, None)
    if record.topic != topics.SCHEDULE_TOPIC:
        kept.pop(names.DELAY, None)
    # First, because the broker's fast path looks for it there.
    unique = {names.UNIQUE_KEY: message_id_of(record)}
    return unique | kept | unique | {names.RESENT_FROM: resent_from}
