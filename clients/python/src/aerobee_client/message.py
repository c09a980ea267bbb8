"""A message to send, and a message that was received. Pure; knows no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from aerobee_wire import properties as names
from aerobee_wire.compression import decompress
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import check_topic

if TYPE_CHECKING:
    from aerobee.broker.v1.message_pb2 import StoredMessage

    from aerobee_wire.record import Record

LAST_DELAY_LEVEL = 18
_FLAG_BOUND = 1 << 31
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NONE: Mapping[str, str] = MappingProxyType({})

# Programs send many messages to few topics; the check costs as much as the rest of a Message.
_check_topic = lru_cache(maxsize=1024)(check_topic)


def _illegal(text: str) -> MqError:
    return MqError(Code.MESSAGE_ILLEGAL, text)


class Message:
    """A message to send.

    `tag`: consumers filter by it. `keys`: the message can be found by each; a key holds no space.
    `properties`: the user's own. `deliver_at`: delivered at this time, which has a time zone, at
    the earliest; up to 3 days ahead, and `Producer.recall` can recall it until then. `delay_level`:
    1 to 18 delays it (1 s to 2 h by default); 0 does not. `flag`: a number of the user's, not
    interpreted.

    Raises MqError: INVALID_PARAMETER (the topic's name), MESSAGE_ILLEGAL (empty body, a reserved or
    unprintable property, a bad tag, key, delay level, time or flag); TypeError when the body is not
    bytes, or what should be text is not.
    """

    __slots__ = (
        "_system_properties",
        "body",
        "delay_level",
        "deliver_at",
        "flag",
        "keys",
        "properties",
        "tag",
        "topic",
    )

    # The bits of the record's sys flag that say how the body is compressed; 0: it is not.
    sys_flag: int = 0

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str = "",
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        flag: int = 0,
    ) -> None:
        _check_topic(topic)
        if not isinstance(body, bytes):
            raise TypeError(f"a body is bytes, not {type(body).__name__}: encode it")
        if not body:
            raise _illegal("the body is empty: give at least one byte")
        if not 0 <= delay_level <= LAST_DELAY_LEVEL:
            raise _illegal(f"delay_level is {delay_level}: give 1 to {LAST_DELAY_LEVEL}, or 0")
        if not -_FLAG_BOUND <= flag < _FLAG_BOUND:
            raise _illegal(f"flag is {flag}: give a number of 32 bits with its sign")
        if deliver_at is not None:
            _check_time(deliver_at, delay_level)
        self.topic = topic
        self.body = body
        self.tag = tag
        self.keys = (keys,) if isinstance(keys, str) and keys else tuple(keys)
        self.properties = properties or {}
        self.delay_level = delay_level
        self.deliver_at = deliver_at
        self.flag = flag
        self._system_properties = _NONE
        if tag:
            _check_text("the tag", tag)
        for key in self.keys:
            _check_key(key)
        if properties:
            _check_properties(properties)

    def __repr__(self) -> str:
        tag = f", tag={self.tag!r}" if self.tag else ""
        return f"Message({self.topic!r}, {len(self.body)} bytes{tag})"

    def with_properties(self, properties: Mapping[str, str]) -> Self:
        """A copy with further properties of the user's, for interceptors. Raises MESSAGE_ILLEGAL
        for a reserved or unprintable one."""
        _check_properties(properties)
        other = copy(self)
        other.properties = {**self.properties, **properties}
        return other

    @property
    def delayed(self) -> bool:
        return self.delay_level > 0 or self.deliver_at is not None

    @property
    def is_half(self) -> bool:
        """Whether it is stored for a transaction, and shown to nobody before that is committed."""
        return names.TRANSACTION_PREPARED in self._system_properties

    def with_system_properties(self, properties: Mapping[str, str]) -> Message:
        """A copy with properties that are not the user's to set: of a transaction or a request."""
        copy = Message.__new__(Message)
        for name in Message.__slots__:
            setattr(copy, name, getattr(self, name))
        copy._system_properties = {**self._system_properties, **properties}
        return copy

    def encoded_properties(self, message_id: str) -> bytes:
        """The properties string, with `message_id` as UNIQ_KEY.

        Raises MESSAGE_ILLEGAL over 32,767 bytes.
        """
        text = f"{names.UNIQUE_KEY}\x01{message_id}\x02"
        if self.tag:
            text += f"{names.TAGS}\x01{self.tag}\x02"
        if self.keys:
            text += f"{names.KEYS}\x01{' '.join(self.keys)}\x02"
        if self.delay_level:
            text += f"{names.DELAY}\x01{self.delay_level}\x02"
        if self.deliver_at is not None:
            text += f"{names.TIMER_DELIVER_MS}\x01{_epoch_ms(self.deliver_at)}\x02"
        for name, value in self._system_properties.items():
            text += f"{name}\x01{value}\x02"
        for name, value in self.properties.items():
            text += f"{name}\x01{value}\x02"
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise _illegal(f"a property cannot be written in UTF-8: {error}") from None
        if len(encoded) > names.MAX_BYTES:
            raise _illegal(
                f"the properties take {len(encoded)} bytes: keep them, with tag and keys, within "
                f"{names.MAX_BYTES}"
            )
        return encoded


def _check_time(deliver_at: datetime, delay_level: int) -> None:
    if deliver_at.tzinfo is None:
        raise _illegal(f"deliver_at {deliver_at} has no time zone: give one, datetime.UTC perhaps")
    if delay_level:
        raise _illegal("a message has a delay_level or deliver_at, not both")


def _epoch_ms(moment: datetime) -> int:
    """Milliseconds since the epoch, rounded up, so that no message is delivered early."""
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def _check_text(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} {text!r} is text, not {type(text).__name__}")
    if "\x01" in text or "\x02" in text:
        raise _illegal(f"{what} {text!r} holds \\x01 or \\x02, which separate properties")


def _check_key(key: str) -> None:
    _check_text("the key", key)
    if not key or " " in key:
        raise _illegal(f"the key {key!r} is empty or holds a space: give keys=[…] for several")


def _check_properties(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        _check_text("the property name", name)
        _check_text(f"the property {name}:", value)
        if not name or not value:
            raise _illegal(f"the property {name!r} = {value!r} is empty: leave it out")
        if name in names.RESERVED:
            raise _illegal(f"the property name {name!r} is reserved: choose another")


def _of_record(name: str) -> Any:
    """A property: this field of the record."""
    return property(attrgetter(f"_record.{name}"))


class ReceivedMessage:
    """A received message. Its fields are decoded when they are read.

    `topic`: the topic that it is stored in; but a listener is shown the origin topic of a retry,
    whose own is then `stored_topic`. `reconsume_times`: failed deliveries; 0 at the first one.
    `broker_name`: "" when unknown.
    """

    __slots__ = ("_record", "broker_name", "queue_offset", "reconsume_times", "topic")

    stored_topic: str = _of_record("topic")
    stored_body: bytes = _of_record("body")  # perhaps compressed
    properties: Mapping[str, str] = _of_record("properties")
    # Store host and physical offset of this record, in hex.
    offset_message_id: str = _of_record("offset_message_id")
    queue_id: int = _of_record("queue_id")
    physical_offset: int = _of_record("physical_offset")
    store_size: int = _of_record("store_size")
    flag: int = _of_record("flag")
    sys_flag: int = _of_record("sys_flag")
    born_timestamp_ms: int = _of_record("born_timestamp_ms")
    born_host: str = _of_record("born_host")
    store_timestamp_ms: int = _of_record("store_timestamp_ms")
    store_host: str = _of_record("store_host")

    def __init__(self, record: Record | StoredMessage, broker_name: str = "") -> None:
        self._record = record
        self.broker_name = broker_name
        self.topic = record.topic
        self.queue_offset = record.queue_offset
        self.reconsume_times = record.reconsume_times

    def __repr__(self) -> str:
        where = f"{self.stored_topic}/{self.broker_name}/{self.queue_id}"
        return f"ReceivedMessage({where} at {self.queue_offset}, {self.message_id})"

    def show_origin_topic(self) -> None:
        """Makes `topic` the origin topic, for a listener."""
        self.topic = self.origin_topic

    def count_failure(self) -> None:
        """Counts a failed delivery that the broker could not be told of."""
        self.reconsume_times += 1

    @property
    def body(self) -> bytes:
        """As the producer gave it; decompressed each time it is read, to 64 MiB at most. Raises
        MESSAGE_ILLEGAL when that fails; when a package is missing for it, that is named."""
        return decompress(self._record.body, self._record.sys_flag)

    def _property(self, name: str) -> str:
        """The value of a property; "" when it is absent."""
        return self._record.properties.get(name, "")

    @property
    def tag(self) -> str:
        return self._property(names.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(filter(None, self._property(names.KEYS).split(names.KEY_SEPARATOR)))

    @property
    def message_id(self) -> str:
        """The unique id that the producer gave it; the same in every retry."""
        return self._property(names.UNIQUE_KEY) or self._record.offset_message_id

    @property
    def origin_topic(self) -> str:
        """The topic that its producer sent it to, also of a retry or dead letter."""
        return (
            self._property(names.DLQ_ORIGIN_TOPIC)
            or self._property(names.RETRY_TOPIC)
            or self._record.topic
        )

    @property
    def origin_message_id(self) -> str:
        """The offset message id of the record that was first consumed. (The property
        DLQ_ORIGIN_MESSAGE_ID holds its `message_id`, which retries and dead letters keep.)"""
        return self._property(names.ORIGIN_MESSAGE_ID) or self._record.offset_message_id

    @property
    def failure_reason(self) -> str:
        """Why the last delivery failed, e.g. the class of an exception; "" when none failed."""
        return self._property(names.DLQ_REASON)

    @property
    def failure_description(self) -> str:
        return self._property(names.DLQ_REASON_DESCRIPTION)
