"""Half messages and op records as they lie in the log. No clock, no loop.

A half message waits in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC, with the topic and queue that it is
meant for in its properties. Its queue offset there is its name for ever: a copy of it that stands
further on in the log (`moved`) says the offset of the first.

Op records lie in queue 0 of RMQ_SYS_TRANS_OP_HALF_TOPIC, in the order in which things happened:

    tag d   body "17,18,"       these half messages are ended: committed, rolled back or given up
    tag c   body "17:3,20:1,"   and so often the producers of these were asked
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aerobee_broker.errors import InvalidParameter, MessageIllegal
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import TRANSACTION_COMMIT, TRANSACTION_MASK, Record

QUEUE_ID = 0
# The consumer group whose offsets say from where on the two topics matter, as in RocketMQ.
GROUP = names.SYSTEM_GROUP_PREFIX + "TRANS"
MAX_ID_BYTES = 255
MAX_IMMUNITY_S = 24 * 3_600

ENDED = "d"
ASKED = "c"

_FIRST_COPY_NAME = b"TRAN_PREPARED_QUEUE_OFFSET\x01"
# Of a half message alone; what is committed has none of them.
_WAITING = (
    props.REAL_TOPIC,
    props.REAL_QUEUE_ID,
    props.HALF_STORED_MS,
    props.TRANSACTION_CHECK_TIMES,
)


@dataclass(frozen=True, slots=True)
class Half:
    """What a stored half message says of itself. Times in milliseconds."""

    name: int  # queue offset of the first copy
    topic: str  # that it is meant for
    transaction_id: str
    producer_group: str
    stored_ms: int
    immunity_ms: int | None
    checks: int


# ---- into the half topic ----


def is_transactional(properties: Mapping[str, str]) -> bool:
    return properties.get(props.TRANSACTION_PREPARED) == "true"


def name_transaction(properties: dict[str, str]) -> None:
    """Puts the transaction id in and takes out what only the broker writes.

    Raises InvalidParameter without a producer group, MessageIllegal for an id that is too long.
    """
    if not properties.get(props.PRODUCER_GROUP):
        raise InvalidParameter(
            "a transactional message names no producer group: give producer_group, or PGROUP"
        )
    for name in (*_WAITING, props.TRANSACTION_PREPARED_QUEUE_OFFSET):
        properties.pop(name, None)
    unique = properties[props.UNIQUE_KEY]
    if len(unique.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        raise MessageIllegal(
            f"the UNIQ_KEY of a transactional message has at most {MAX_ID_BYTES} bytes"
        )
    properties[props.TRANSACTION_ID] = unique


def as_half(message: NewMessage, properties: dict[str, str]) -> NewMessage:
    """`message` as it waits for its transaction; `properties` are its decoded properties."""
    properties[props.REAL_TOPIC] = message.topic
    properties[props.REAL_QUEUE_ID] = str(message.queue_id)
    message.topic, message.queue_id = names.HALF_TOPIC, QUEUE_ID
    message.properties = props.encode(properties)
    return message


def _immunity_ms(properties: Mapping[str, str]) -> int | None:
    """How long the sender wants not to be asked; None: as long as the broker says."""
    seconds = props.whole_number(properties.get(props.CHECK_IMMUNITY_TIME, ""))
    if seconds is None or seconds < 0:
        return None
    return min(seconds, MAX_IMMUNITY_S) * 1_000


def begun(properties: Mapping[str, str], queue_offset: int, now_ms: int) -> Half:
    """What the message that `as_half` made says, stored now at this offset."""
    return Half(
        name=queue_offset,
        topic=properties[props.REAL_TOPIC],
        transaction_id=properties[props.TRANSACTION_ID],
        producer_group=properties[props.PRODUCER_GROUP],
        stored_ms=now_ms,
        immunity_ms=_immunity_ms(properties),
        checks=0,
    )


def name_in(record: Record) -> int:
    """The name of a half message: without decoding its properties, since a start asks many."""
    first = props.get(record.raw_properties, _FIRST_COPY_NAME)
    name = None if first is None else props.whole_number(first)
    return record.queue_offset if name is None else name


def read(record: Record) -> Half:
    """What a record of the half topic says."""
    properties = record.properties
    stored = props.whole_number(properties.get(props.HALF_STORED_MS, ""))
    checks = props.whole_number(properties.get(props.TRANSACTION_CHECK_TIMES, ""))
    return Half(
        name=name_in(record),
        topic=properties.get(props.REAL_TOPIC, ""),
        transaction_id=properties.get(props.TRANSACTION_ID, ""),
        producer_group=properties.get(props.PRODUCER_GROUP, ""),
        stored_ms=record.store_timestamp_ms if stored is None else stored,
        immunity_ms=_immunity_ms(properties),
        checks=checks or 0,
    )


# ---- out of it ----


def destination(record: Record) -> tuple[str, int]:
    """(topic, queue id) that a half message is meant for. Raises MessageIllegal."""
    topic = record.properties.get(props.REAL_TOPIC, "")
    queue_id = props.whole_number(record.properties.get(props.REAL_QUEUE_ID, ""))
    if not topic or queue_id is None or queue_id < 0:
        raise MessageIllegal(
            f"the half message at queue offset {record.queue_offset} names no topic: roll it back"
        )
    return topic, queue_id


def committed(record: Record, name: int) -> tuple[NewMessage, dict[str, str]]:
    """The message as its consumers get it, and its decoded properties. Raises MessageIllegal."""
    topic, queue_id = destination(record)
    properties = {key: value for key, value in record.properties.items() if key not in _WAITING}
    properties[props.TRANSACTION_PREPARED_QUEUE_OFFSET] = str(name)
    message = NewMessage.copy_of(record, topic, queue_id, properties)
    message.sys_flag = record.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    message.prepared_transaction_offset = record.physical_offset
    return message, properties


def committed_from(record: Record) -> int:
    """The half message that a record was committed from; -1 for any other record."""
    if record.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
        return -1
    name = props.whole_number(record.properties.get(props.TRANSACTION_PREPARED_QUEUE_OFFSET, ""))
    return -1 if name is None else name


def moved(record: Record, half: Half) -> NewMessage:
    """The half message again, to stand further on in the log."""
    properties = dict(record.properties)
    properties[props.TRANSACTION_PREPARED_QUEUE_OFFSET] = str(half.name)
    properties[props.HALF_STORED_MS] = str(half.stored_ms)
    properties[props.TRANSACTION_CHECK_TIMES] = str(half.checks)
    return NewMessage.copy_of(record, names.HALF_TOPIC, QUEUE_ID, properties)


def given_up(record: Record, checks: int) -> NewMessage:
    """The half message as it lies in TRANS_CHECK_MAX_TIME_TOPIC."""
    properties = dict(record.properties)
    properties.pop(props.HALF_STORED_MS, None)
    properties[props.TRANSACTION_CHECK_TIMES] = str(checks)
    return NewMessage.copy_of(record, names.CHECK_MAX_TIME_TOPIC, QUEUE_ID, properties)


# ---- op records ----


def ended(halves: Iterable[int], now_ms: int) -> NewMessage:
    return _op(ENDED, "".join(f"{name}," for name in halves), now_ms)


def asked(checks: Mapping[int, int], now_ms: int) -> NewMessage:
    """`checks`: half message → times."""
    return _op(ASKED, "".join(f"{name}:{times}," for name, times in checks.items()), now_ms)


def _op(tag: str, body: str, now_ms: int) -> NewMessage:
    return NewMessage(
        names.OP_HALF_TOPIC,
        QUEUE_ID,
        body.encode(),
        props.encode({props.TAGS: tag}),
        born_timestamp_ms=now_ms,
    )


def op_in(record: Record) -> tuple[list[int], dict[int, int]]:
    """(half messages that ended, half message → times that it was asked for).

    Raises ValueError for a body that is neither.
    """
    words = record.body.decode().split(",")[:-1]
    match record.properties.get(props.TAGS):
        case "d":
            return [int(word) for word in words], {}
        case "c":
            pairs = (word.partition(":") for word in words)
            return [], {int(name): int(times) for name, _, times in pairs}
    raise ValueError("neither of the tags c and d")
