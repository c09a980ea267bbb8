"""Decide to which topic a dead letter is sent again, and with which properties.

The functions only use properties, so that they work for a record of a broker and for a row of
Spark.

The body, the flag and the compression bits of the sys flag are sent as they are stored. Each
message is sent with REDRIVE_TIMES, the number of redrives including this one, and
REDRIVE_TIMESTAMP, in milliseconds since the epoch. Brokers keep both properties through retries, so
that a message that is dead-lettered again has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from aerobee_wire import properties as names
from aerobee_wire import topics
from aerobee_wire.status import Code, MqError, invalid_parameter

# Properties of the failed deliveries, which would mislead the next consumer or delay the message
# again.
DROPPED = frozenset(
    {
        names.DLQ_ORIGIN_TOPIC,
        names.DLQ_ORIGIN_MESSAGE_ID,
        names.DLQ_ORIGIN_QUEUE_ID,
        names.DLQ_REASON,
        names.DLQ_REASON_DESCRIPTION,
        names.DLQ_CAUSE,
        names.DLQ_STACK_TRACE,
        names.DLQ_CONSUMER,
        names.RETRY_TOPIC,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.DELAY,
        names.WAIT,
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.CONSUME_START_TIME,
        names.POP_CHECK_POINT,
        names.FIRST_POP_TIME,
        names.TRANSACTION_PREPARED,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.TIMER_OUT_MS,
    }
)

# The tag or reason of a selection of letters that have none. No property can contain it. So a
# broker that does not know its meaning selects nothing.
WITHOUT = "\x01"

# Properties that these rules or their callers use. All others are sent as they are stored.
LOOKED_AT = DROPPED | {
    names.UNIQUE_KEY,
    names.ORIGIN_MESSAGE_ID,
    names.REDRIVE_TIMES,
    names.REDRIVE_TIMESTAMP,
    names.TAGS,
    names.SHARDING_KEY,
    names.LITE_TOPIC,
    names.PRIORITY,
}


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a redrive.

    RETRY is the retry topic of the group, so that other groups do not see the messages. ORIGIN is
    the topic from which each message came, where all groups see it. Any other target sends all
    messages to `topic`.
    """

    name: str  # "retry", "origin", or "topic:" and the topic
    topic: str = ""

    RETRY: ClassVar[Target]
    ORIGIN: ClassVar[Target]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a target.

        Raises MqError with the code INVALID_PARAMETER for an invalid target or a topic that refuses
        sends.
        """
        if text in (_RETRY, _ORIGIN, _GROUP):
            return cls(_RETRY if text == _GROUP else text)
        kind, _, topic = text.partition(":")
        if kind != "topic" or not topic:
            raise invalid_parameter(
                f"invalid target {text!r} of a redrive: give group, origin, or topic:NAME",
                about="target",
            )
        topics.check_topic(topic)
        if topics.is_system(topic) or topics.group_of(topic) is not None:
            raise invalid_parameter(
                f"{topic} belongs to the system or to a group: redrive to a topic of your own, or "
                "to retry",
                about="target",
            )
        return cls(text, topic)

    def __str__(self) -> str:
        return self.name

    @property
    def is_retry(self) -> bool:
        return self.name == _RETRY  # comparing targets takes five times as long


_RETRY, _ORIGIN, _GROUP = "retry", "origin", "group"  # "group" is another name of "retry"
Target.RETRY = Target(_RETRY)
Target.ORIGIN = Target(_ORIGIN)


def fits(wanted: str, value: str | None) -> bool:
    """Return whether the tag or reason of a letter fits that of a selection; "" fits all."""
    return not wanted or (not value if wanted == WITHOUT else value == wanted)


def group_of(topic: str) -> str:
    """Return the consumer group to which a dead-letter topic belongs.

    Raises MqError with the code MESSAGE_ILLEGAL if `topic` is not a dead-letter topic.
    """
    if not topics.is_dead_letter(topic):
        raise _illegal(
            f"a message of the topic {topic} is not a dead letter: only these are redriven"
        )
    return topic.removeprefix(topics.DLQ_PREFIX)


def origin_topic(properties: Mapping[str, str]) -> str:
    """Return the topic from which a dead letter came.

    Raises MqError with the code MESSAGE_ILLEGAL if its properties lack this topic.
    """
    found = properties.get(names.DLQ_ORIGIN_TOPIC) or properties.get(names.RETRY_TOPIC)
    if not found:
        raise _illegal(
            f"neither {names.DLQ_ORIGIN_TOPIC} nor {names.RETRY_TOPIC} says where this dead letter "
            "comes from: redrive it to topic:NAME"
        )
    return found


def topic_for(target: Target, consumer_group: str, properties: Mapping[str, str]) -> str:
    """Return the topic to which a dead letter with these properties is sent.

    Raises MqError with the code MESSAGE_ILLEGAL if this needs an origin topic that the properties
    lack.
    """
    if target.topic:
        return target.topic
    origin = origin_topic(properties)
    return topics.retry_topic(consumer_group) if target.is_retry else origin


def message_id_of(properties: Mapping[str, str], offset_message_id: str) -> str:
    """Return the message id from the producer, or the offset message id if there is none."""
    return properties.get(names.UNIQUE_KEY) or offset_message_id


def redrive_times(properties: Mapping[str, str]) -> int:
    """Return the number of redrives of a message. An invalid number counts as 0."""
    times = properties.get(names.REDRIVE_TIMES)  # nearly always absent
    return max(0, names.whole_number(times) or 0) if times else 0


def properties_for(
    target: Target, properties: Mapping[str, str], *, offset_message_id: str, now_ms: int
) -> dict[str, str]:
    """Return the properties of a message to send again.

    They are the application's properties, tag, keys, message group, and the existing message id.
    `offset_message_id` is the id of the dead letter's own record. Raises MqError like `topic_for`.
    """
    kept = {name: value for name, value in properties.items() if name not in DROPPED}
    kept[names.UNIQUE_KEY] = message_id_of(properties, offset_message_id)
    kept.setdefault(names.ORIGIN_MESSAGE_ID, offset_message_id)
    kept[names.REDRIVE_TIMES] = str(redrive_times(properties) + 1)
    kept[names.REDRIVE_TIMESTAMP] = str(now_ms)
    if target.is_retry:
        kept[names.RETRY_TOPIC] = origin_topic(properties)
    return kept


def _illegal(text: str) -> MqError:
    return MqError(Code.MESSAGE_ILLEGAL, text)
