"""Define a message to send, without any network code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Self, TypedDict, Unpack, get_type_hints

from aerobee_client.runtime.kinds import (
    check_arguments,
    check_kind,
    check_names,
    kind_of,
    wrong_kind,
)
from aerobee_wire import properties as names
from aerobee_wire.queues.choice import check_message_group
from aerobee_wire.queues.lite import check_name
from aerobee_wire.status import Code, MqError, invalid_parameter
from aerobee_wire.topics import check_topic

LAST_DELAY_LEVEL = 18
MAX_DELAY = timedelta(days=3)  # the brokers' timerMaxDelaySec
MAX_PRIORITY = (1 << 31) - 1
# 1,024 of the 32,767 bytes are reserved for the properties that a retry or dead letter adds.
MAX_PROPERTIES_BYTES = names.MAX_BYTES - 1_024
_FLAG_BOUND = 1 << 31
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NONE: Mapping[str, str] = MappingProxyType({})

# Programs send many messages to few topics. The check costs as much as the rest of a Message.
_check_topic = lru_cache(maxsize=1024)(check_topic)
_check_message_group = lru_cache(maxsize=1024)(check_message_group)


def _illegal(text: str) -> MqError:
    return MqError(Code.MESSAGE_ILLEGAL, text)


class MessageSettings(TypedDict, total=False):
    """The keyword arguments that Message accepts; Message describes them."""

    message_group: str
    lite_topic: str
    delay_level: int
    delay: timedelta | None
    deliver_at: datetime | None
    priority: int | None
    wait_store_ok: bool


_SETTINGS = {name: kind_of(hint) for name, hint in get_type_hints(MessageSettings).items()}


class Message:
    """A message to send.

    At most one of `delay`, `deliver_at` and `delay_level` may be given, and none of them with a
    message group or lite topic. `delay` and `deliver_at` are exact to the millisecond and reach up
    to 3 days ahead. Until the delivery, `Producer.recall` can recall the message.

    Args:
        topic: The topic of the message.
        body: The content, at least one byte.
        tag: Consumers filter by it.
        keys: Keys by which the message can be found. A key contains no space.
        properties: Properties of the application.
        flag: A 32-bit number of the application, which Aerobee does not interpret.
        message_group: All messages of a message group go to one queue and keep their order,
            whichever producer sends them. Less than 64 bytes.
        lite_topic: The lite topic in a topic of the type LITE, in which every message has one. It
            keeps the order of its messages. 1 to 64 letters, digits, _ and -.
        delay_level: 1 to 18 delays the message (1 s to 2 h by default); 0 does not.
        delay: The delay of the delivery, by the broker's clock.
        deliver_at: The time of the delivery, with a time zone.
        priority: 0 (lowest) or more. In a topic of the type PRIORITY, a consumer gets messages of
            higher priority first.
        wait_store_ok: False if the broker may answer before the message is durable.

    Raises:
        MqError: INVALID_PARAMETER for an invalid topic name or lite topic, an argument that is
            unknown or of a wrong type, or a lite topic together with a message group, priority or
            delay. MESSAGE_ILLEGAL for an
            empty body, a reserved or unprintable property, or an invalid tag, key, group, delay,
            time, priority or flag.

    Example:
        Message("orders", b"42 apples", tag="fruit", keys="order-17", message_group="customer-5")
    """

    __slots__ = (
        "body",
        "delay",
        "delay_level",
        "deliver_at",
        "encoded_settings",
        "flag",
        "keys",
        "lite_topic",
        "message_group",
        "priority",
        "properties",
        "size",
        "system_properties",
        "tag",
        "topic",
        "wait_store_ok",
    )

    # The bits of the record's sys flag for the compression of the body; 0 if not compressed.
    sys_flag: int = 0

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str = "",
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        **settings: Unpack[MessageSettings],
    ) -> None:
        if (
            body.__class__ is not bytes
            or topic.__class__ is not str
            or tag.__class__ is not str
            or flag.__class__ is not int
        ):
            check_arguments(Message.__init__, topic=topic, body=body, tag=tag, flag=flag)
        _check_topic(topic)
        if not body:
            raise _illegal("the body is empty: give at least one byte")
        if flag and not -_FLAG_BOUND <= flag < _FLAG_BOUND:
            raise _illegal(f"flag is {flag}: give a number of 32 bits with its sign")
        self.topic = topic
        self.body = body
        self.tag = tag
        if keys.__class__ is str:
            self.keys: tuple[str, ...] = (keys,) if keys else ()
        elif keys.__class__ is tuple or keys.__class__ is list:
            self.keys = tuple(keys)
        else:
            check_kind("keys", keys, str | Sequence[str])
            self.keys = (keys,) if isinstance(keys, str) and keys else tuple(keys)
        self.properties = properties or {}
        self.flag = flag
        self.system_properties = _NONE  # set by transactions and requests
        # the encoded properties of the settings below; "" if no setting was given
        self.encoded_settings = ""
        self.message_group = ""
        self.lite_topic = ""
        self.delay_level = 0
        self.delay: timedelta | None = None
        self.deliver_at: datetime | None = None
        self.priority: int | None = None
        self.wait_store_ok = True
        if tag:
            _check_tag(tag)
        for key in self.keys:
            if key.__class__ is not str:
                check_kind("keys", keys, str | Sequence[str])
            _check_key(key)
        if properties is not None:
            _check_properties(properties)
        if settings:
            self._take(settings)
        # The share of the budget that the message takes while it waits: bytes of the body, and
        # characters of the tag, the keys and the properties.
        self.size = len(body) + len(tag)
        if properties or keys:
            self.size += _characters(self)

    def _take(self, settings: MessageSettings) -> None:
        for name, value in settings.items():
            kind = _SETTINGS.get(name)
            if kind is None:
                check_names(settings, _SETTINGS)
            elif value.__class__ not in kind.exact and not kind.accepts(value):
                raise wrong_kind(name, value, kind)
        self.message_group = settings.get("message_group", "")
        self.lite_topic = settings.get("lite_topic", "")
        self.delay_level = settings.get("delay_level", 0)
        self.delay = settings.get("delay")
        self.deliver_at = settings.get("deliver_at")
        self.priority = settings.get("priority")
        self.wait_store_ok = settings.get("wait_store_ok", True)
        _check_delay(self)
        if self.message_group:
            _check_separators("the message group", self.message_group)
            _check_message_group(self.message_group)
        if self.lite_topic:
            _check_lite_topic(self)
        if self.priority is not None and not 0 <= self.priority <= MAX_PRIORITY:
            raise _illegal(f"priority is {self.priority}: give 0 to {MAX_PRIORITY}")
        self.encoded_settings = _text_of(dict(self._setting_properties()))

    def _setting_properties(self) -> Iterator[tuple[str, str]]:
        if self.delay_level:
            yield names.DELAY, str(self.delay_level)
        if self.deliver_at is not None:
            yield names.TIMER_DELIVER_MS, str(_epoch_ms(self.deliver_at))
        if self.delay is not None:
            yield names.TIMER_DELAY_MS, str(_milliseconds(self.delay))
        if self.message_group:
            yield names.SHARDING_KEY, self.message_group
        if self.lite_topic:
            yield names.LITE_TOPIC, self.lite_topic
        if self.priority is not None:
            yield names.PRIORITY, str(self.priority)
        if not self.wait_store_ok:
            yield names.WAIT, "false"

    def __repr__(self) -> str:
        tag = f", tag={self.tag!r}" if self.tag else ""
        return f"Message({self.topic!r}, {len(self.body)} bytes{tag})"

    def with_properties(self, properties: Mapping[str, str]) -> Self:
        """Return a copy with additional application properties. Interceptors use it.

        Args:
            properties: The properties to add. They replace properties of the same name.

        Returns:
            A new message; the original message does not change.

        Raises:
            MqError: MESSAGE_ILLEGAL for a reserved or unprintable property.
        """
        _check_properties(properties)
        other = self._copy()
        other.properties = {**self.properties, **properties}
        other.size = self.size - _characters(self) + _characters(other)
        return other

    def with_system_properties(self, properties: Mapping[str, str]) -> Self:
        """Return a copy with additional properties of a transaction or request."""
        other = self._copy()
        other.system_properties = {**self.system_properties, **properties}
        return other

    def _copy(self) -> Self:
        other = object.__new__(type(self))
        # These assignments take a fifth of the time of a loop over the slots.
        other.topic = self.topic
        other.body = self.body
        other.tag = self.tag
        other.keys = self.keys
        other.properties = self.properties
        other.flag = self.flag
        other.size = self.size
        other.system_properties = self.system_properties
        other.encoded_settings = self.encoded_settings
        other.message_group = self.message_group
        other.lite_topic = self.lite_topic
        other.delay_level = self.delay_level
        other.delay = self.delay
        other.deliver_at = self.deliver_at
        other.priority = self.priority
        other.wait_store_ok = self.wait_store_ok
        kind: Any = type(self)
        if kind is not Message:
            for slot in _further_slots(kind):
                setattr(other, slot, getattr(self, slot))
        return other

    @property
    def given(self) -> Message:
        """The message as the program created it, before compression."""
        return self

    @property
    def order_key(self) -> str:
        """The message group or lite topic, whose messages stay in order; "" if there is none."""
        return self.message_group or self.lite_topic

    @property
    def delayed(self) -> bool:
        return self.delay_level > 0 or self.deliver_at is not None or self.delay is not None

    @property
    def is_half(self) -> bool:
        """True if the message is stored for a transaction and invisible until the commit."""
        return names.TRANSACTION_PREPARED in self.system_properties

    def encoded_properties(self, message_id: str, added: str = "") -> bytes:
        """Return the properties string.

        Args:
            message_id: The value of UNIQ_KEY.
            added: The text of an AddedProperty whose name the message does not have.

        Raises:
            MqError: MESSAGE_ILLEGAL if the string is longer than 31,743 bytes.
        """
        text = f"{names.UNIQUE_KEY}\x01{message_id}\x02"
        if self.tag:
            text += f"{names.TAGS}\x01{self.tag}\x02"
        if self.keys:
            text += f"{names.KEYS}\x01{' '.join(self.keys)}\x02"
        text += self.encoded_settings
        if self.system_properties:
            text += _text_of(self.system_properties)
        for name, value in self.properties.items():
            text += f"{name}\x01{value}\x02"
        text += added
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise _illegal(f"a property cannot be written in UTF-8: {error}") from None
        if len(encoded) > MAX_PROPERTIES_BYTES:
            raise _illegal(
                f"the properties take {len(encoded)} bytes: keep them, with tag and keys, within "
                f"{MAX_PROPERTIES_BYTES}"
            )
        return encoded


def check_message(message: object) -> None:
    """Check that the argument is a Message.

    Raises MqError with the code INVALID_PARAMETER for other types, including received messages.
    """
    if not isinstance(message, Message):
        raise wrong_kind("message", message, Message)


def check_messages(messages: Sequence[object]) -> None:
    """Check each message of a batch as `check_message` does. The error names the index."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise wrong_kind("messages", messages, Sequence[Message])
    for index, message in enumerate(messages):
        try:
            check_message(message)
        except MqError as error:
            error.add_context(f"message {index} of the batch, of which nothing was sent")
            error.about = "messages"
            raise


class AddedProperty:
    """An application property that an interceptor adds to a send.

    An added property costs less than a copy of the message that has it.

    Args:
        name: The name of the property.
        value: The value of the property.

    Raises:
        MqError: MESSAGE_ILLEGAL for a reserved or unprintable property.

    Attributes:
        text: The property in the encoding of the properties string.
    """

    __slots__ = ("name", "text", "value")

    def __init__(self, name: str, value: str) -> None:
        if name.__class__ is not str or value.__class__ is not str:
            check_arguments(AddedProperty.__init__, name=name, value=value)
        _check_properties({name: value})
        self.name = name
        self.value = value
        self.text = f"{name}\x01{value}\x02"

    def copied_to(self, message: Message) -> Message:
        """Return a copy of `message` that has this property in addition."""
        return message.with_properties({self.name: self.value})


def _characters(message: Message) -> int:
    """Return the number of characters of a message's keys and properties."""
    count = sum(map(len, message.keys)) if message.keys else 0
    for name, value in message.properties.items():
        count += len(name) + len(value)
    return count


def _text_of(properties: Mapping[str, str]) -> str:
    """Encode properties in the format of the properties string."""
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


@lru_cache(maxsize=64)
def _further_slots(kind: type[Message]) -> tuple[str, ...]:
    """Return the attributes that a subclass of Message adds to those of Message."""
    bases = kind.__mro__[: kind.__mro__.index(Message)]
    return tuple(slot for base in bases for slot in getattr(base, "__slots__", ()))


def _check_delay(message: Message) -> None:
    level, delay, moment = message.delay_level, message.delay, message.deliver_at
    if not 0 <= level <= LAST_DELAY_LEVEL:
        raise _illegal(f"delay_level is {level}: give 1 to {LAST_DELAY_LEVEL}, or 0")
    if (level > 0) + (delay is not None) + (moment is not None) > 1:
        raise _illegal("delay_level, delay and deliver_at say when it is delivered: give one")
    if delay is not None and not timedelta(0) <= delay <= MAX_DELAY:
        raise _illegal(f"delay is {delay}: give 0 to {MAX_DELAY.days} days")
    if moment is not None and moment.tzinfo is None:
        raise _illegal(f"deliver_at {moment} has no time zone: give one, datetime.UTC perhaps")
    if message.message_group and message.delayed:
        raise _illegal(
            f"the message group {message.message_group!r} is in order, and a delayed message comes "
            "out of order: leave out one of the two"
        )


def _check_lite_topic(message: Message) -> None:
    name = message.lite_topic
    _check_separators("the lite topic", name)
    check_name(name)
    for what, given in (
        ("message_group", bool(message.message_group)),
        ("priority", message.priority is not None),
        ("delay", message.delayed),
    ):
        if given:
            raise invalid_parameter(
                f"the message is of the lite topic {name}, which keeps the order in which its "
                f"messages are sent: leave out {what}",
                about=what,
            )


def _milliseconds(delay: timedelta) -> int:
    """Return the delay in milliseconds, rounded up: a message must not arrive early."""
    return -(-delay // timedelta(milliseconds=1))


def _epoch_ms(moment: datetime) -> int:
    """Return milliseconds since the epoch, rounded up: a message must not arrive early."""
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def _check_separators(what: str, text: str) -> None:
    if "\x01" in text or "\x02" in text:
        raise _illegal(f"{what} {text!r} holds \\x01 or \\x02, which separate properties")


def _check_tag(tag: str) -> None:
    _check_separators("the tag", tag)
    if "|" in tag:
        raise _illegal(f"the tag {tag!r} holds |, which separates the tags of a subscription")


def _check_key(key: str) -> None:
    _check_separators("the key", key)
    if not key or " " in key:
        raise _illegal(f"the key {key!r} is empty or holds a space: give keys=[…] for several")


def _check_properties(properties: Mapping[str, str]) -> None:
    # The first comparison is for speed: a check against an abstract class takes 300 ns.
    if properties.__class__ is not dict and not isinstance(properties, Mapping):
        raise wrong_kind("properties", properties, Mapping[str, str])
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise wrong_kind("properties", properties, Mapping[str, str])
        names.check_user_property(name, value)
        if not value:
            raise _illegal(f"the property {name!r} has no value: leave it out")
