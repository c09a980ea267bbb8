"""What becomes of a message that was not consumed: a retry after a delay, or a dead letter. Rules
only.

Source: facts of CONSUMER_SEND_MSG_BACK. Ours: a group may have its own list of delays, and the
reason of the last failure travels with the message. Dead letters name their origin.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee_broker.delivery.delay.levels import DelayQueues, destination
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import Record

FIRST_RETRY_LEVEL = 3  # 10 s
MAX_REASON_BYTES = 256
MAX_DESCRIPTION_BYTES = 1_024
# What a send must leave free in the properties of a message, so that the longest marks of a retry
# and of a dead letter (topic 127, group 120, ids 56 and their names: about 800 bytes) always fit.
RESERVED_PROPERTY_BYTES = 1_024
_ADDED_LATER_BYTES = 256  # origin of a dead letter, or where a delayed message is meant for
_MAX_ID_BYTES = 128

_SEPARATORS = str.maketrans({props.NAME_END: " ", props.VALUE_END: " "})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message was not consumed."""

    reason: str = ""
    description: str = ""


def is_last(
    reconsume_times: int, group: SubscriptionGroup, *, delay_level: int, max_times: int | None
) -> bool:
    """Whether a failure after so many earlier ones makes a dead letter."""
    limit = group.retry_max_times if max_times is None else max_times
    return delay_level < 0 or reconsume_times >= limit


def retried(
    record: Record,
    group: SubscriptionGroup,
    delays: DelayQueues,
    *,
    queue_id: int,
    delay_level: int,
    failure: Failure,
) -> NewMessage:
    """The message that comes to the group again, delayed as the level or the group says."""
    properties = _marked(record, failure)
    topic = names.retry_topic(group.consumer_group)
    message = _failed_once_more(record, topic, queue_id, properties)
    if delay_level > 0:
        return delays.by_level(message, properties, delay_level)
    if not group.retry_delays_ms:
        level = FIRST_RETRY_LEVEL + record.reconsume_times
        return delays.by_level(message, properties, level)
    own = group.retry_delays_ms
    delay_ms = own[min(record.reconsume_times, len(own) - 1)]
    return delays.by_delay(message, properties, delay_ms) if delay_ms else message


def dead_lettered(record: Record, group: SubscriptionGroup, *, failure: Failure) -> NewMessage:
    """The message as it lies in the group's dead-letter topic."""
    properties = _marked(record, failure)
    topic = names.dead_letter_topic(group.consumer_group)
    return _failed_once_more(record, topic, 0, as_dead_letter(properties))


def as_dead_letter(properties: dict[str, str]) -> dict[str, str]:
    """Adds the origin, in the names that RocketMQ has for it."""
    origin = properties.get(props.RETRY_TOPIC)
    message_id = properties.get(props.UNIQUE_KEY) or properties.get(props.ORIGIN_MESSAGE_ID)
    if origin:
        properties[props.DLQ_ORIGIN_TOPIC] = origin
    if message_id:
        properties[props.DLQ_ORIGIN_MESSAGE_ID] = cut(message_id, _MAX_ID_BYTES)
    return properties


def _marked(record: Record, failure: Failure) -> dict[str, str]:
    """The properties of a record with where it came from and why it failed last."""
    properties = dict(record.properties)
    destination(properties)
    for name in (props.DELAY, props.DLQ_REASON, props.DLQ_REASON_DESCRIPTION):
        properties.pop(name, None)
    properties.setdefault(props.RETRY_TOPIC, record.topic)
    properties.setdefault(props.ORIGIN_MESSAGE_ID, record.offset_message_id)
    properties[props.WAIT] = "false"
    room = props.MAX_BYTES - _ADDED_LATER_BYTES - len(props.encode(properties))
    for name, text, limit in (
        (props.DLQ_REASON, failure.reason, MAX_REASON_BYTES),
        (props.DLQ_REASON_DESCRIPTION, failure.description, MAX_DESCRIPTION_BYTES),
    ):
        room -= len(name) + 2
        value = cut(text.translate(_SEPARATORS), min(limit, room))
        if value:
            properties[name] = value
            room -= len(value.encode())
    return properties


def cut(text: str, limit: int) -> str:
    """As much of the text as fits into `limit` bytes of UTF-8, whole characters only."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: max(0, limit)].decode("utf-8", "ignore")


def _failed_once_more(
    record: Record, topic: str, queue_id: int, properties: dict[str, str]
) -> NewMessage:
    message = NewMessage.copy_of(record, topic, queue_id, properties)
    message.reconsume_times += 1
    return message
