"""A message that was received. Pure; knows no network."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from aerobee_wire import properties as names
from aerobee_wire.compression import decompress

if TYPE_CHECKING:
    from aerobee.broker.v1.message_pb2 import StoredMessage

    from aerobee_wire.record import Record

_REPLY_TO_CLIENT = f"{names.REPLY_TO_CLIENT}\x01".encode()


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
    def stored_properties(self) -> bytes:
        """The properties string."""
        encoded: bytes | None = getattr(self._record, "raw_properties", None)
        return names.encode(self.properties) if encoded is None else encoded

    def find_property(self, name: str) -> str | None:
        """The value of one property, without decoding the others; None when it is absent."""
        encoded = getattr(self._record, "raw_properties", None)
        if encoded is None:
            return self.properties.get(name)
        found = names.get(encoded, f"{name}\x01".encode())
        return None if found is None else found.decode("utf-8", "replace")

    @property
    def is_request(self) -> bool:
        """Whether its producer waits for a reply."""
        encoded = getattr(self._record, "raw_properties", None)
        if encoded is not None and _REPLY_TO_CLIENT not in encoded:
            return False  # without decoding them all
        return bool(self._property(names.REPLY_TO_CLIENT))

    @property
    def tag(self) -> str:
        return self._property(names.TAGS)

    @property
    def lite_topic(self) -> str:
        """The lite topic that it was sent to, also of a dead letter; "": none."""
        return self._property(names.LITE_TOPIC)

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
