"""Define a message that a consumer receives, and decode messages from a pull response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from aerobee_wire import properties as names
from aerobee_wire.compression import decompress
from aerobee_wire.record import CorruptRecord, Record, iter_records
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import is_retry

if TYPE_CHECKING:
    from aerobee.broker.v1.message_pb2 import StoredMessage

_TAGS = f"{names.TAGS}\x01".encode()
_REPLY_TO_CLIENT = f"{names.REPLY_TO_CLIENT}\x01".encode()


def _of_record(name: str) -> Any:
    """Return a property that reads the field `name` of the record."""
    return property(attrgetter(f"_record.{name}"))


class ReceivedMessage:
    """A received message. Its fields are decoded when they are read.

    Attributes:
        topic: The topic that stores the message. For a retry, a listener sees the origin topic
            here, and `stored_topic` is the retry topic.
        broker_name: The broker that stores the message; "" if unknown.
        queue_id: The queue that stores the message.
        queue_offset: The offset in that queue.
        reconsume_times: The number of failed deliveries; 0 at the first delivery.
        properties: All properties, including those of the system.
        offset_message_id: Store host and physical offset of this record, in hex.
        born_timestamp_ms: When the producer sent the message, in milliseconds since the epoch.
        store_timestamp_ms: When the broker stored the message, in milliseconds since the epoch.
        store_size: The size of the record in bytes.
    """

    __slots__ = ("_record", "broker_name", "queue_offset", "reconsume_times", "topic")

    stored_topic: str = _of_record("topic")
    stored_body: bytes = _of_record("body")  # may be compressed
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
        """Set `topic` to the origin topic, for a listener."""
        self.topic = self.origin_topic

    def count_failure(self) -> None:
        """Count a failed delivery that could not be reported to the broker."""
        self.reconsume_times += 1

    @property
    def body(self) -> bytes:
        """The body as the producer set it, decompressed at each read to at most 64 MiB.

        Raises:
            MqError: MESSAGE_ILLEGAL if decompression fails. The error names a package that is
                missing.
        """
        return decompress(self._record.body, self._record.sys_flag)

    def _property(self, name: str) -> str:
        """Return the value of a property, or "" if it is absent."""
        return self._record.properties.get(name, "")

    def find_property(self, name: str) -> str | None:
        """Return the value of one property without decoding the others.

        Returns:
            The value, or None if the property is absent.
        """
        encoded = getattr(self._record, "raw_properties", None)
        if encoded is None:
            return self.properties.get(name)
        found = names.get(encoded, f"{name}\x01".encode())
        return None if found is None else found.decode("utf-8", "replace")

    @property
    def is_request(self) -> bool:
        """True if the producer waits for a reply."""
        encoded = getattr(self._record, "raw_properties", None)
        if encoded is not None and _REPLY_TO_CLIENT not in encoded:
            return False  # without decoding all properties
        return bool(self._property(names.REPLY_TO_CLIENT))

    @property
    def tag(self) -> str:
        return self._property(names.TAGS)

    @property
    def lite_topic(self) -> str:
        """The lite topic to which the message was sent; "" if none. A dead letter keeps it."""
        return self._property(names.LITE_TOPIC)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(filter(None, self._property(names.KEYS).split(names.KEY_SEPARATOR)))

    @property
    def message_id(self) -> str:
        """The unique id that the producer assigned; the same in every retry."""
        return self._property(names.UNIQUE_KEY) or self._record.offset_message_id

    @property
    def origin_topic(self) -> str:
        """The topic to which the producer sent the message. Retries and dead letters keep it."""
        return (
            self._property(names.DLQ_ORIGIN_TOPIC)
            or self._property(names.RETRY_TOPIC)
            or self._record.topic
        )

    @property
    def origin_message_id(self) -> str:
        """The offset message id of the record that was first consumed.

        The property DLQ_ORIGIN_MESSAGE_ID holds `message_id` instead, which retries and dead
        letters keep.
        """
        return self._property(names.ORIGIN_MESSAGE_ID) or self._record.offset_message_id

    @property
    def failure_reason(self) -> str:
        """The reason why the last delivery failed, such as an exception class; "" if it did not."""
        return self._property(names.DLQ_REASON)

    @property
    def failure_description(self) -> str:
        return self._property(names.DLQ_REASON_DESCRIPTION)

    @property
    def failure_cause(self) -> str:
        """The exceptions that caused the last failure, the nearest first, one per line."""
        return self._property(names.DLQ_CAUSE)

    @property
    def failure_stack_trace(self) -> str:
        """The stack trace of the last failure; the innermost call is last."""
        return self._property(names.DLQ_STACK_TRACE)

    @property
    def failed_consumer(self) -> str:
        """The host and process of the consumer that failed last."""
        return self._property(names.DLQ_CONSUMER)


def has_request(messages: Iterable[ReceivedMessage]) -> bool:
    """Return whether the producer of a message waits for a reply.

    This takes a third of the time of `is_request` of each message.
    """
    for message in messages:
        record = message._record
        if type(record) is Record and _REPLY_TO_CLIENT not in record.raw_properties:
            continue
        if message.is_request:
            return True
    return False


def received(
    records: bytes,
    broker_name: str,
    *,
    tags: frozenset[bytes] = frozenset(),
    origin_topics: bool = False,
) -> list[ReceivedMessage]:
    """Decode concatenated records to messages.

    If `tags` is not empty, return only messages with one of these tags. With `origin_topics`,
    messages of a retry topic show their origin topic. Raises MqError with the code
    MESSAGE_CORRUPTED if a record fails its check.
    """
    messages = []
    topic, is_of_retry = "", False
    try:
        for record in iter_records(records):
            if tags and names.get(record.raw_properties, _TAGS) not in tags:
                continue  # the broker compares only the hash codes of tags
            message = ReceivedMessage(record, broker_name)
            if record.topic is not topic:  # once for all records of a topic
                topic = record.topic
                is_of_retry = origin_topics and is_retry(topic)
            if is_of_retry:
                message.show_origin_topic()
            messages.append(message)
    except CorruptRecord as error:
        raise MqError(
            Code.MESSAGE_CORRUPTED,
            f"broker {broker_name} answered with a record that fails its check: {error.reason}",
        ) from None
    return messages
