"""The retry policy: decides whether a failed message is retried or dead-lettered.

It also decides the delay and the properties of the message. The functions are pure, and store
nothing.

The policy follows RocketMQ's CONSUMER_SEND_MSG_BACK, with three differences. A group may have its
own list of delays. The reason of the last failure is stored with the message. Dead letters contain
the topic and the id of the original message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from aerobee_broker.delivery.delay.levels import DelayQueues, take_destination
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import Record

FIRST_RETRY_LEVEL = 3  # 10 s
MAX_REASON_BYTES = 256
INVISIBLE_DURATION_EXPIRED = "InvisibleDurationExpired"
CONSUME_FAILED = "ConsumeFailed"
MAX_DESCRIPTION_BYTES = 1_024
MAX_CAUSE_BYTES = 1_024
MAX_STACK_TRACE_BYTES = 4_096
MAX_CONSUMER_BYTES = 256
# A send must leave this free in the properties of a message, so that the longest properties that a
# retry and a dead letter add (topic 127, group 120, ids 56 and their names: about 800 bytes) fit.
RESERVED_PROPERTY_BYTES = 1_024
# Part of the above, for the origin of a dead letter, or the destination of a delayed message.
_ADDED_LATER_BYTES = 256
_OF_LAST_FAILURE = (
    props.DELAY,
    props.DLQ_REASON,
    props.DLQ_REASON_DESCRIPTION,
    props.DLQ_CAUSE,
    props.DLQ_STACK_TRACE,
    props.DLQ_CONSUMER,
)
_MAX_ID_BYTES = 128


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a message was not consumed."""

    reason: str = ""
    description: str = ""
    cause: str = ""  # the exceptions that caused it, the nearest first, one per line
    stack_trace: str = ""  # the innermost call is last
    consumer: str = ""  # its host and process

    @classmethod
    def of_expired(cls, attempt: int, client_id: str) -> Self:
        """Return the failure of a message whose lease expired.

        `client_id` is the client that held the lease, or empty if it is unknown.
        """
        holder = _holder(client_id)
        return cls(
            INVISIBLE_DURATION_EXPIRED,
            f"the invisible duration of delivery attempt {attempt} ran out at {holder}",
            consumer=client_id,
        )

    def bounded(self) -> Self:
        """Return the failure with the bytes of each text that a message can have."""
        return replace(
            self,
            reason=props.cut(self.reason, MAX_REASON_BYTES),
            description=props.cut(self.description, MAX_DESCRIPTION_BYTES),
            cause=props.cut(self.cause, MAX_CAUSE_BYTES),
            stack_trace=props.cut_start(self.stack_trace, MAX_STACK_TRACE_BYTES),
            consumer=props.cut(self.consumer, MAX_CONSUMER_BYTES),
        )

    def completed(self, attempt: int, client_id: str) -> Self:
        """Return the failure of a message that a consumer gave back, with what it did not say.

        Most official SDKs give no reason.
        """
        text = f"delivery attempt {attempt} failed in the listener of {_holder(client_id)}"
        return replace(
            self,
            reason=self.reason or CONSUME_FAILED,
            description=self.description or text,
            consumer=self.consumer or client_id,
        )


def _holder(client_id: str) -> str:
    return f"client {client_id}" if client_id else "a client that is not known"


def is_last_attempt(attempt: int, group: SubscriptionGroup, max_times: int | None = None) -> bool:
    """Return whether a message is dead-lettered after this attempt to consume it has failed.

    `max_times` overrides the group's `retry_max_times`.

    Only this function makes this decision (docs/reliability.md, P5). *Attempts* are deliveries,
    counted from 1. *Reconsume times* are the failed attempts that a stored message records, so the
    number of its next attempt is one higher. A group gets the first delivery and `retry_max_times`
    retries. The number of the failed attempt depends on the way in which the failure is reported:

        send-back                               reconsume times of the record + 1, or the higher
                                                count of a consumer that retried locally
        a message sent to %RETRY%group          its reconsume times, which the consumer increased
        a lease whose invisible duration ended  the delivery attempt of the lease
    """
    return attempt > (group.retry_max_times if max_times is None else max_times)


def retry_delay_ms(attempt: int, group: SubscriptionGroup, levels_ms: Sequence[int]) -> int:
    """Return the delay in milliseconds between an attempt and the next one; the first attempt is 1.

    The delay comes from the group's exponential policy or its own list of delays. If the group has
    neither, the delay levels from 10 s on apply. The last delay of a list applies to all later
    attempts.
    """
    if group.exponential_retry is not None:
        return group.exponential_retry.delay_ms(attempt)
    delays_ms = group.retry_delays_ms or levels_ms[FIRST_RETRY_LEVEL - 1 :] or levels_ms
    return delays_ms[min(attempt, len(delays_ms)) - 1]


def retry_of(
    record: Record,
    group: SubscriptionGroup,
    *,
    queue_id: int,
    failure: Failure,
    counted: bool = True,
) -> tuple[NewMessage, dict[str, str]]:
    """Return the message for the group's retry topic, without a delay, and its decoded properties.

    If `counted` is true, the failure increases the reconsume times of the message.
    """
    properties = _failed_properties(record, failure)
    topic = names.retry_topic(group.consumer_group)
    return _failed_copy(record, topic, queue_id, properties, counted=counted), properties


def delayed(
    retry: NewMessage,
    properties: dict[str, str],
    attempt: int,
    group: SubscriptionGroup,
    delays: DelayQueues,
    *,
    delay_level: int,
) -> NewMessage:
    """Return `retry` with a delay that follows a failed attempt; the first attempt is 1.

    The delay is `delay_level`, or if that is 0, the delay of the group after this attempt.
    """
    if delay_level == 0 and (group.retry_delays_ms or group.exponential_retry):
        delay_ms = retry_delay_ms(attempt, group, delays.levels_ms)
        return delays.by_delay(retry, properties, delay_ms) if delay_ms else retry
    level = delay_level or FIRST_RETRY_LEVEL + attempt - 1
    return delays.by_level(retry, properties, level)


def dead_lettered(
    record: Record, group: SubscriptionGroup, *, failure: Failure, attempt: int
) -> NewMessage:
    """Return the message for the group's dead-letter topic.

    `attempt` is the number of the last failed attempt.
    """
    properties = _failed_properties(record, failure)
    topic = names.dead_letter_topic(group.consumer_group)
    message = _failed_copy(record, topic, 0, with_dead_letter_origin(properties))
    message.reconsume_times = attempt
    return message


def with_dead_letter_origin(properties: dict[str, str]) -> dict[str, str]:
    """Add the topic and the id of the original message to the properties of a dead letter.

    Uses RocketMQ's property names, and returns the same dict.
    """
    origin = properties.get(props.RETRY_TOPIC)
    message_id = properties.get(props.UNIQUE_KEY) or properties.get(props.ORIGIN_MESSAGE_ID)
    if origin:
        properties[props.DLQ_ORIGIN_TOPIC] = origin
    if message_id:
        properties[props.DLQ_ORIGIN_MESSAGE_ID] = props.cut(message_id, _MAX_ID_BYTES)
    return properties


def _failed_properties(record: Record, failure: Failure) -> dict[str, str]:
    """Return the properties of a record, with its original topic and id and its last failure."""
    properties = dict(record.properties)
    take_destination(properties)
    for name in _OF_LAST_FAILURE:
        properties.pop(name, None)
    if props.RETRY_TOPIC not in properties:
        properties[props.RETRY_TOPIC] = record.topic
        if props.SHARDING_KEY in properties or props.LITE_TOPIC in properties:
            properties[props.DLQ_ORIGIN_QUEUE_ID] = str(record.queue_id)
    properties.setdefault(props.ORIGIN_MESSAGE_ID, record.offset_message_id)
    properties[props.WAIT] = "false"
    room = props.MAX_BYTES - _ADDED_LATER_BYTES - len(props.encode(properties))
    for name, text, limit in (
        (props.DLQ_REASON, failure.reason, MAX_REASON_BYTES),
        (props.DLQ_REASON_DESCRIPTION, failure.description, MAX_DESCRIPTION_BYTES),
        (props.DLQ_CONSUMER, failure.consumer, MAX_CONSUMER_BYTES),
        (props.DLQ_CAUSE, failure.cause, MAX_CAUSE_BYTES),
        (props.DLQ_STACK_TRACE, failure.stack_trace, MAX_STACK_TRACE_BYTES),
    ):
        left = min(limit, room - len(name) - 2)
        # The innermost call, at the end of a stack trace, says the most.
        kept = props.cut_start(text, left) if name == props.DLQ_STACK_TRACE else text
        value = props.value_of(kept, left)
        if value:
            properties[name] = value
            room -= len(name) + 2 + len(value.encode())
    return properties


def _failed_copy(
    record: Record, topic: str, queue_id: int, properties: dict[str, str], *, counted: bool = True
) -> NewMessage:
    message = NewMessage.copy_of(record, topic, queue_id, properties)
    message.reconsume_times += counted
    return message
