"""Send: takes messages in, checks them, files each in its physical queue, answers when durable.

Two forms. Plain: any topics and queues mixed; the broker adds MSG_REGION, TRACE_ON and CLUSTER to
the properties. They are a map, or, of ordinary messages (those that ask for nothing but to be
stored), already encoded. Columnar: one topic and queue, properties already encoded; they are stored
as they came (a missing UNIQ_KEY is added). Encoded properties are searched, not decoded.

Differs from RocketMQ: a topic without write permission is refused here too, not only hidden from
routes; a send may use 31,743 of the 32,767 bytes of properties, so that a retry always fits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.router import DelayRouter
from aerobee_broker.delivery.retry import policy
from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.errors import (
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    QueueNotExist,
)
from aerobee_broker.metadata.topics import WRITE, TopicConfig
from aerobee_broker.metrics import Meters
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import Appended, NewColumns, NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.message_id import UniqueIds
from aerobee_wire.record import TRANSACTION_MASK, TRANSACTION_PREPARED

MAX_PROPERTY_BYTES = props.MAX_BYTES - policy.RESERVED_PROPERTY_BYTES
MAX_BATCH_MESSAGES = 65_536

_UNIQUE_KEY_NAME = b"UNIQ_KEY\x01"
_NO_UNIQUE_KEY = b"UNIQ_KEY\x01\x02"
_VALUE_END = props.VALUE_END.encode()
# What asks for more than storing. Searched in all properties of a batch at once.
_SPECIAL_NAMES = (b"DELAY\x01", b"TRAN_MSG\x01", b"TIMER_", b"POP_CK\x01")
# Compressed, multi tags, hosts (set anew), compression type. The others are for the broker alone.
_SENDER_SYS_FLAGS = 0x1 | 0x2 | 0x30 | 0x700
_KINDS = {
    names.SCHEDULE_TOPIC: "DELAY",
    names.TIMER_TOPIC: "DELAY",
    names.HALF_TOPIC: "TRANSACTION",
}


@dataclass(slots=True)
class Incoming:
    """A message in the plain form. `queue_id` None: the broker picks one."""

    topic: str
    body: bytes
    properties: dict[str, str]
    queue_id: int | None = None
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = b""
    reconsume_times: int = 0


@dataclass(slots=True)
class Columns:
    """Messages of one topic and queue in the columnar form."""

    topic: str
    body_sizes: Sequence[int]
    bodies: bytes
    properties_sizes: Sequence[int] = ()
    properties: bytes = b""
    flags: Sequence[int] = ()
    sys_flag: int = 0
    queue_id: int | None = None
    born_timestamp_ms: int = 0
    born_host: bytes = b""


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of a message. `queue_id` is the one it was sent to, also while it waits; of a
    half message `queue_offset` is that in the half topic. `deliver_ms` is the time of its own that
    it waits for, and can be recalled until; 0 for none."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    unique_message_id: str
    transaction_id: str = ""
    deliver_ms: int = 0


@dataclass(frozen=True, slots=True)
class StoredBatch:
    queue_id: int
    first_queue_offset: int
    physical_offsets: list[int] = field(default_factory=list)


class Intake:
    """`added`: properties that every plain message gets. `limit`: bytes of a body."""

    def __init__(
        self,
        *,
        log: DurableLog,
        topics: TopicRegistry,
        groups: GroupRegistry,
        router: DelayRouter,
        transactions: Transactions,
        meters: Meters,
        clock: Clock,
        unique_ids: UniqueIds,
        limit: int,
        added: Mapping[str, str],
        broker_permission: int,
        reject_transactions: bool,
        rng: random.Random,
    ) -> None:
        self._log = log
        self._topics = topics
        self._groups = groups
        self._router = router
        self._transactions = transactions
        self._meters = meters
        self._clock = clock
        self._unique_ids = unique_ids
        self._limit = limit
        self._added = dict(added)
        self._added_encoded = props.encode(added)
        set_here = (b"%b\x01" % name.encode() for name in (*added, props.WAIT))
        self._not_ordinary = (_NO_UNIQUE_KEY, *_SPECIAL_NAMES, *set_here)
        self._writable = bool(broker_permission & WRITE)
        self._reject_transactions = reject_transactions
        self._rng = rng

    # ---- plain ----

    async def send(self, incoming: Sequence[Incoming], queue_count: int = 0) -> list[Stored]:
        """Stores all or none. `queue_count`: of topics that are created by this."""
        messages = []
        asked = []
        completed = []
        for one in incoming:
            config = await self._topic(one.topic, queue_count)
            queue_id = self._queue(config, one.queue_id)
            _check_body(len(one.body), self._limit)
            properties = self._completed(one.properties)
            _check_sys_flag(one.sys_flag, properties)
            messages.append(await self._filed(one, queue_id, properties))
            asked.append(queue_id)
            completed.append(properties)
        if any(message.topic == names.HALF_TOPIC for message in messages):
            places = await self._append_halves(messages, completed)
        else:
            places = await self._log.put(messages, wait=not all(map(_does_not_wait, incoming)))
        for one, message in zip(incoming, messages, strict=True):
            self._meters.stored(one.topic, 1, len(one.body), _KINDS.get(message.topic, "NORMAL"))
        return [
            Stored(
                queue_id,
                place.queue_offset,
                place.physical_offset,
                properties[props.UNIQUE_KEY],
                properties[props.TRANSACTION_ID] if message.topic == names.HALF_TOPIC else "",
                int(properties[props.TIMER_OUT_MS]) if message.topic == names.TIMER_TOPIC else 0,
            )
            for queue_id, place, properties, message in zip(
                asked, places, completed, messages, strict=True
            )
        ]

    def is_ordinary(self, messages: Sequence[NewMessage]) -> bool:
        """Whether `send_ordinary` takes them."""
        properties = [message.properties for message in messages]
        if not all(map(bytes.startswith, properties, repeat(_UNIQUE_KEY_NAME))):
            return False
        if not all(map(bytes.endswith, properties, repeat(_VALUE_END))):
            return False
        together = b"".join(properties)
        try:
            together.decode()
        except UnicodeDecodeError:
            return False
        return not any(name in together for name in self._not_ordinary) and not any(
            map(names.is_retry, {message.topic for message in messages})
        )

    async def send_ordinary(
        self, messages: Sequence[NewMessage], queue_count: int = 0
    ) -> list[Appended]:
        """Stores all or none, as `send` would at three times the cost. A queue id below 0: the
        broker picks one."""
        topic, config = "", None
        totals: dict[str, list[int]] = {}  # topic → messages, bytes of their bodies
        added, now = self._added_encoded, self._clock.now_ms()
        for message in messages:
            if config is None or message.topic != topic:
                topic = message.topic
                config = await self._topic(topic, queue_count)
                total = totals.setdefault(topic, [0, 0])
            message.queue_id = self._queue(config, message.queue_id)
            size = len(message.body)
            _check_body(size, self._limit)
            if message.sys_flag & ~_SENDER_SYS_FLAGS:
                _check_sys_flag(message.sys_flag, {})
            message.properties += added
            _check_properties(len(message.properties))
            message.born_timestamp_ms = message.born_timestamp_ms or now
            total[0] += 1
            total[1] += size
        places = await self._log.put(messages)
        for topic, (count, size) in totals.items():
            self._meters.stored(topic, count, size)
        return places

    async def _append_halves(
        self, messages: Sequence[NewMessage], completed: Sequence[Mapping[str, str]]
    ) -> list[Appended]:
        """Half messages are known to `transactions` from the moment that they have a place."""
        now = self._clock.now_ms()
        self._log.check_room()
        places = self._log.store.append(messages)
        opened = []
        for message, properties, place in zip(messages, completed, places, strict=True):
            if message.topic == names.HALF_TOPIC:
                half = half_messages.begun(properties, place.queue_offset, now)
                opened.append(self._transactions.opened(half, place))
        self._transactions.open_if_stored(opened)
        await self._log.durable()
        return places

    def _completed(self, properties: dict[str, str]) -> dict[str, str]:
        """With what the broker adds."""
        for name, value in self._added.items():
            properties.setdefault(name, value)
        properties.pop(props.POP_CHECK_POINT, None)
        if not properties.get(props.UNIQUE_KEY):
            properties[props.UNIQUE_KEY] = self._unique_ids.make(self._clock.now_ms())
        return properties

    async def _filed(
        self, incoming: Incoming, queue_id: int, properties: dict[str, str]
    ) -> NewMessage:
        """The message in the topic and queue where it is to wait or to stay."""
        transactional = half_messages.is_transactional(properties)
        if transactional and names.is_retry(incoming.topic):
            # It was committed before it was consumed.
            del properties[props.TRANSACTION_PREPARED]
            transactional = False
        if transactional:
            self._refuse_transactions()
            half_messages.name_transaction(properties)
        message = NewMessage(
            topic=incoming.topic,
            queue_id=queue_id,
            body=incoming.body,
            properties=b"",
            flag=incoming.flag,
            sys_flag=incoming.sys_flag & ~TRANSACTION_MASK,
            born_timestamp_ms=incoming.born_timestamp_ms or self._clock.now_ms(),
            born_host=incoming.born_host,
        )
        encoded = props.encode(properties)
        if not names.is_retry(incoming.topic):
            _check_properties(len(encoded))
        elif await self._given_up(message, incoming, properties):
            encoded = props.encode(properties)
        if transactional:
            self._router.check(properties)
            return half_messages.as_half(message, properties)
        waiting = self._router.route(message, properties)
        if waiting is not None:
            return waiting
        message.properties = encoded
        return message

    def _refuse_transactions(self) -> None:
        if self._reject_transactions:
            raise NoPermission(
                "this broker takes no transactional messages (rejectTransactionMessage): send to "
                "another"
            )

    async def _given_up(
        self, message: NewMessage, incoming: Incoming, properties: dict[str, str]
    ) -> bool:
        """A message that a consumer sends to its retry topic itself becomes a dead letter when it
        was consumed more often than allowed (more, not as often: here the count was raised before
        the message was sent)."""
        group = self._groups.get(names.group_of(incoming.topic) or "")
        if incoming.reconsume_times < 0:
            raise InvalidParameter(f"reconsume_times {incoming.reconsume_times} is below 0")
        message.reconsume_times = incoming.reconsume_times
        own = props.whole_number(properties.get(props.MAX_RECONSUME_TIMES, ""))
        if own is not None and own < 0:
            own = None
        if not policy.is_last_attempt(incoming.reconsume_times, group, own):
            return False
        topic = names.dead_letter_topic(group.consumer_group)
        await self._topics.for_group(topic)
        message.topic, message.queue_id = topic, 0
        properties.pop(props.DELAY, None)
        policy.with_dead_letter_origin(properties)
        self._meters.dead_lettered(group.consumer_group, 1)
        return True

    # ---- columnar ----

    async def send_columns(self, columns: Columns, queue_count: int = 0) -> StoredBatch:
        """Stores all or none, in their order."""
        _check_columns(columns, self._limit)
        config = await self._topic(columns.topic, queue_count)
        queue_id = self._queue(config, columns.queue_id)
        one_topic = self._new_columns(columns, queue_id)
        if any(name in columns.properties for name in _SPECIAL_NAMES):
            count = len(one_topic.bodies)
            messages = [self._special(one_topic.message(number)) for number in range(count)]
            places = await self._log.put(messages)
            first, physical = places[0].queue_offset, [place.physical_offset for place in places]
        else:
            first, physical = await self._log.put_columns(one_topic)
        self._meters.stored(columns.topic, len(physical), len(columns.bodies))
        return StoredBatch(queue_id, first, physical)

    def _new_columns(self, columns: Columns, queue_id: int) -> NewColumns:
        now = self._clock.now_ms()
        sizes = columns.properties_sizes or [0] * len(columns.body_sizes)
        properties = _slices(sizes, columns.properties)
        # Clients write it first: then there is nothing to search.
        if not all(map(bytes.startswith, properties, repeat(_UNIQUE_KEY_NAME))):
            properties = [
                one if _has_unique_key(one) else self._with_unique_key(one, now)
                for one in properties
            ]
        return NewColumns(
            columns.topic,
            queue_id,
            _slices(columns.body_sizes, columns.bodies),
            properties,
            columns.flags,
            columns.sys_flag,
            columns.born_timestamp_ms or now,
            columns.born_host,
        )

    def _with_unique_key(self, properties: bytes, now_ms: int) -> bytes:
        return b"UNIQ_KEY\x01%b\x02%b" % (self._unique_ids.make(now_ms).encode(), properties)

    def _special(self, message: NewMessage) -> NewMessage:
        """A message of a batch that is delayed, refused, or carries what is not for it."""
        if not any(name in message.properties for name in _SPECIAL_NAMES):
            return message
        properties = props.decode(message.properties)
        if half_messages.is_transactional(properties):
            raise NoPermission("a batch takes no transactional messages: send them in plain form")
        properties.pop(props.POP_CHECK_POINT, None)
        waiting = self._router.route(message, properties)
        if waiting is not None:
            return waiting
        message.properties = props.encode(properties)
        return message

    # ---- both ----

    async def _topic(self, topic: str, queue_count: int) -> TopicConfig:
        config = self._topics.ready(topic)
        if config is None:
            _refuse_system(topic)
            config = await self._topics.for_send(topic, queue_count)
        elif topic in names.SEND_REFUSED_TOPICS:
            _refuse_system(topic)
        if not self._writable:
            raise NoPermission("this broker takes no messages (brokerPermission): send to another")
        if not config.writable:
            raise NoPermission(
                f"topic {topic} takes no messages (permission {config.permission}): "
                "give it write permission, or send to another"
            )
        return config

    def _queue(self, config: TopicConfig, queue_id: int | None) -> int:
        if queue_id is None or queue_id < 0:
            return self._rng.randrange(max(1, config.write_queue_count))
        if queue_id >= config.queue_count:
            raise QueueNotExist(config.topic, queue_id, config.queue_count)
        return queue_id


def _slices(sizes: Sequence[int], blob: bytes) -> list[bytes]:
    ends = list(accumulate(sizes))
    return [blob[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _has_unique_key(properties: bytes) -> bool:
    return (
        properties.startswith(_UNIQUE_KEY_NAME)
        or props.get(properties, _UNIQUE_KEY_NAME) is not None
    )


def _does_not_wait(incoming: Incoming) -> bool:
    return incoming.properties.get(props.WAIT) == "false"


def _refuse_system(topic: str) -> None:
    if topic in names.SEND_REFUSED_TOPICS:
        raise NoPermission(f"{topic} is a system topic: send to a topic of your own")


def _check_body(size: int, limit: int) -> None:
    if size == 0:
        raise MessageIllegal("the body is empty: give it at least one byte")
    if size > limit:
        raise MessageIllegal(
            f"the body has {size} bytes: at most {limit} (maxMessageSize); split or compress it"
        )


def _check_sys_flag(sys_flag: int, properties: Mapping[str, str]) -> None:
    prepared = TRANSACTION_PREPARED if half_messages.is_transactional(properties) else 0
    if sys_flag & TRANSACTION_MASK & ~prepared:
        raise InvalidParameter(
            f"sys_flag {sys_flag:#x} says transaction, and the property TRAN_MSG is not true: "
            "give both or neither"
        )
    if sys_flag & ~_SENDER_SYS_FLAGS & ~prepared:
        raise InvalidParameter(
            f"sys_flag {sys_flag:#x} has bits that are not a sender's: use 1 for a compressed body"
        )


def _check_properties(size: int) -> None:
    if size > MAX_PROPERTY_BYTES:
        raise MessageIllegal(
            f"the properties have {size} bytes: at most {MAX_PROPERTY_BYTES}; move data to the body"
        )


def _check_columns(columns: Columns, limit: int) -> None:
    count = len(columns.body_sizes)
    if not 1 <= count <= MAX_BATCH_MESSAGES:
        raise InvalidParameter(f"a batch has 1 to {MAX_BATCH_MESSAGES} messages, not {count}")
    if names.is_retry(columns.topic):
        raise MessageIllegal("a batch cannot go to a retry topic: send the messages one by one")
    for name, sizes, blob in (
        ("body_sizes", columns.body_sizes, columns.bodies),
        ("properties_sizes", columns.properties_sizes, columns.properties),
    ):
        if sum(sizes) != len(blob):
            raise InvalidParameter(f"{name} add up to {sum(sizes)}, but {len(blob)} bytes came")
    for name, column in (
        ("properties_sizes", columns.properties_sizes),
        ("flags", columns.flags),
    ):
        if len(column) not in (0, count):
            raise InvalidParameter(f"{name} has {len(column)} entries for {count} messages")
    if columns.sys_flag & TRANSACTION_MASK:
        raise NoPermission("a batch takes no transactional messages: send them in plain form")
    _check_sys_flag(columns.sys_flag, {})
    _check_body(min(columns.body_sizes), limit)
    _check_body(max(columns.body_sizes), limit)
    _check_properties(max(columns.properties_sizes, default=0))
    props.check_encoding(columns.properties)
