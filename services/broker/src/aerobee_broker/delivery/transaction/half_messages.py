"""The format of half messages and op records in the log.

A half message waits in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC, with its destination topic and queue in
its properties. Its queue offset there is its *name*. A later copy of the half message
(`copy_forward`) keeps the name in a property.

Op records record events of half messages, in queue 0 of RMQ_SYS_TRANS_OP_HALF_TOPIC:

    tag d   body "17,18,"       half messages that were committed, rolled back or given up
    tag c   body "17:3,20:1,"   half messages, and the number of checks of each
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aerobee_broker.delivery.delay.levels import destination_in, redirected
from aerobee_broker.errors import InvalidParameter, MessageIllegal
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import TRANSACTION_COMMIT, TRANSACTION_MASK, Record

QUEUE_ID = 0
# The consumer group whose offsets are the positions from which a start reads the two topics. As in
# RocketMQ.
GROUP = names.SYSTEM_GROUP_PREFIX + "TRANS"
MAX_ID_BYTES = 255
MAX_IMMUNITY_S = 24 * 3_600

ENDED_TAG = "d"
CHECKED_TAG = "c"

_FIRST_COPY_NAME = b"TRAN_PREPARED_QUEUE_OFFSET\x01"
# Properties of half messages only; the committed message does not have them.
_HALF_ONLY = (
    props.REAL_TOPIC,
    props.REAL_QUEUE_ID,
    props.HALF_STORED_MS,
    props.TRANSACTION_CHECK_TIMES,
)


@dataclass(frozen=True, slots=True)
class HalfMessage:
    """The content of a stored half message, without its body. Times are in milliseconds."""

    name: int  # queue offset of its first copy in the half topic
    topic: str  # the destination
    transaction_id: str
    producer_group: str
    stored_ms: int
    immunity_ms: int | None  # time until the first check; None for transactionTimeOut
    checks: int  # number of times that its producers were asked

    @classmethod
    def stored(cls, properties: Mapping[str, str], queue_offset: int, now_ms: int) -> HalfMessage:
        """Return the half message that was just stored at a queue offset.

        `properties` are the decoded properties that `as_half` has completed.
        """
        return cls(
            name=queue_offset,
            topic=properties[props.REAL_TOPIC],
            transaction_id=properties[props.TRANSACTION_ID],
            producer_group=properties[props.PRODUCER_GROUP],
            stored_ms=now_ms,
            immunity_ms=_immunity_ms(properties),
            checks=0,
        )

    @classmethod
    def of_record(cls, record: Record) -> HalfMessage:
        """Return the half message in a record of the half topic."""
        properties = record.properties
        stored = props.whole_number(properties.get(props.HALF_STORED_MS, ""))
        checks = props.whole_number(properties.get(props.TRANSACTION_CHECK_TIMES, ""))
        return cls(
            name=name_in(record),
            topic=properties.get(props.REAL_TOPIC, ""),
            transaction_id=properties.get(props.TRANSACTION_ID, ""),
            producer_group=properties.get(props.PRODUCER_GROUP, ""),
            stored_ms=record.store_timestamp_ms if stored is None else stored,
            immunity_ms=_immunity_ms(properties),
            checks=checks or 0,
        )


def name_in(record: Record) -> int:
    """Return the name of the half message in a record.

    Does not decode the properties, because a start reads many records.
    """
    first = props.get(record.raw_properties, _FIRST_COPY_NAME)
    name = None if first is None else props.whole_number(first)
    return record.queue_offset if name is None else name


def _immunity_ms(properties: Mapping[str, str]) -> int | None:
    seconds = props.whole_number(properties.get(props.CHECK_IMMUNITY_TIME, ""))
    if seconds is None or seconds < 0:
        return None
    return min(seconds, MAX_IMMUNITY_S) * 1_000


# ---- storing half messages ----


def is_transactional(properties: Mapping[str, str]) -> bool:
    return properties.get(props.TRANSACTION_PREPARED) == "true"


def name_transaction(properties: dict[str, str]) -> None:
    """Set the transaction id in the properties of a message that starts a transaction.

    Also removes the properties that only the broker sets. Raises InvalidParameter if there is no
    producer group, or MessageIllegal if the id is too long.
    """
    if not properties.get(props.PRODUCER_GROUP):
        raise InvalidParameter(
            "a transactional message names no producer group: give producer_group, or PGROUP",
            props.PRODUCER_GROUP,
        )
    for name in (*_HALF_ONLY, props.TRANSACTION_PREPARED_QUEUE_OFFSET):
        properties.pop(name, None)
    unique = properties[props.UNIQUE_KEY]
    if len(unique.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        raise MessageIllegal(
            f"the UNIQ_KEY of a transactional message has at most {MAX_ID_BYTES} bytes",
            props.UNIQUE_KEY,
        )
    properties[props.TRANSACTION_ID] = unique


def as_half(message: NewMessage, properties: dict[str, str]) -> NewMessage:
    """Return a message redirected to the half topic.

    `properties` are the decoded properties of `message`.
    """
    return redirected(message, properties, names.HALF_TOPIC, QUEUE_ID)


def copy_forward(record: Record, half: HalfMessage) -> NewMessage:
    """Return a copy of a half message with the same name, to be stored at the end of the log."""
    properties = dict(record.properties)
    properties[props.TRANSACTION_PREPARED_QUEUE_OFFSET] = str(half.name)
    properties[props.HALF_STORED_MS] = str(half.stored_ms)
    properties[props.TRANSACTION_CHECK_TIMES] = str(half.checks)
    return NewMessage.copy_of(record, names.HALF_TOPIC, QUEUE_ID, properties)


# ---- ending half messages ----


def destination(record: Record) -> tuple[str, int]:
    """Return (topic, queue id) of a half message's destination.

    Raises MessageIllegal if the half message has no destination.
    """
    found = destination_in(record.properties)
    if found is None:
        raise MessageIllegal(
            f"the half message at queue offset {record.queue_offset} names no topic: roll it back"
        )
    return found


def committed(record: Record, name: int) -> tuple[NewMessage, dict[str, str]]:
    """Return the message that a commit stores for consumers, and its decoded properties.

    Raises MessageIllegal if the half message has no destination.
    """
    topic, queue_id = destination(record)
    properties = {key: value for key, value in record.properties.items() if key not in _HALF_ONLY}
    properties[props.TRANSACTION_PREPARED_QUEUE_OFFSET] = str(name)
    message = NewMessage.copy_of(record, topic, queue_id, properties)
    message.sys_flag = record.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    message.prepared_transaction_offset = record.physical_offset
    return message, properties


def committed_from(record: Record) -> int:
    """Return the name of the half message of a committed message, or -1 for another message."""
    if record.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
        return -1
    name = props.whole_number(record.properties.get(props.TRANSACTION_PREPARED_QUEUE_OFFSET, ""))
    return -1 if name is None else name


def given_up(record: Record, checks: int) -> NewMessage:
    """Return a half message redirected to TRANS_CHECK_MAX_TIME_TOPIC.

    `checks` is the number of its checks.
    """
    properties = dict(record.properties)
    properties.pop(props.HALF_STORED_MS, None)
    properties[props.TRANSACTION_CHECK_TIMES] = str(checks)
    return NewMessage.copy_of(record, names.CHECK_MAX_TIME_TOPIC, QUEUE_ID, properties)


# ---- op records ----


def ended_record(half_names: Iterable[int], now_ms: int) -> NewMessage:
    return _op_record(ENDED_TAG, "".join(f"{name}," for name in half_names), now_ms)


def checked_record(checks: Mapping[int, int], now_ms: int) -> NewMessage:
    """Return the op record that stores the number of checks of each half message, by name."""
    body = "".join(f"{name}:{count}," for name, count in checks.items())
    return _op_record(CHECKED_TAG, body, now_ms)


def _op_record(tag: str, body: str, now_ms: int) -> NewMessage:
    return NewMessage(
        names.OP_HALF_TOPIC,
        QUEUE_ID,
        body.encode(),
        props.encode({props.TAGS: tag}),
        born_timestamp_ms=now_ms,
    )


def read_op_record(record: Record) -> tuple[list[int], dict[int, int]]:
    """Return the content of an op record.

    The first part has the names of half messages that have ended. The second one maps names to
    numbers of checks. Raises ValueError if the record is not an op record.
    """
    words = record.body.decode().split(",")[:-1]
    match record.properties.get(props.TAGS):
        case "d":
            return [int(word) for word in words], {}
        case "c":
            pairs = (word.partition(":") for word in words)
            return [], {int(name): int(count) for name, _, count in pairs}
    raise ValueError("neither of the tags c and d")
