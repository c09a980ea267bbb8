"""Translate messages between the public protocol and brokers. This module does no I/O.

Brokers store reconsume times, which start at 0. Clients get delivery attempts, which start at 1.
"""

from __future__ import annotations

import hashlib

from aerobee.broker.v1.message_pb2 import Message as BrokerMessage
from aerobee.broker.v1.message_pb2 import StoredMessage, Subscription
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    DigestType,
    Encoding,
    FilterExpression,
    FilterType,
    Message,
    MessageType,
    SystemProperties,
)
from aerobee_foreign.google.protobuf.timestamp_pb2 import Timestamp

from aerobee_proxy.cluster.topic_route import DELAY, FIFO, LITE, NORMAL, PRIORITY, TRANSACTION
from aerobee_proxy.v2.resources import known_name
from aerobee_proxy.v2.validation import delivery_ms, milliseconds
from aerobee_wire import message_id, topics
from aerobee_wire import properties as names
from aerobee_wire.compression import MAX_BODY_BYTES, decompress
from aerobee_wire.handles.receipt_handle import MAX_TIME_MS
from aerobee_wire.record import COMPRESSED, Record
from aerobee_wire.status import MqError

BORN_HOST = "__BORNHOST"
# Aerobee's own property; RocketMQ's brokers do not know it.
LITE_TOPIC = "__LITE_TOPIC"

_MAX_INT32 = 2**31 - 1

# Protobuf looks up the values of an enum in Python code. Do it here once, not once per message.
_MD5 = DigestType.MD5
_IDENTITY, _GZIP = Encoding.IDENTITY, Encoding.GZIP
_NORMAL, _TRANSACTION = MessageType.NORMAL, MessageType.TRANSACTION

# Stored properties that become separate fields of the public message, with the same value.
_FIELDS = {
    names.TAGS: "tag",
    names.SHARDING_KEY: "message_group",
    names.TRACE_CONTEXT: "trace_context",
    LITE_TOPIC: "lite_topic",
}
_UNIQUE_KEY = names.UNIQUE_KEY.encode() + names.NAME_END.encode()
_VALUE_END = names.VALUE_END.encode()
_DELAY_NAMES = frozenset((names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS))


def message_type(message: Message) -> str:
    """Derive the type of a message from its system properties.

    The declared type is ignored, except for TRANSACTION.
    """
    system = message.system_properties
    if system.message_type == _TRANSACTION:
        return TRANSACTION
    if system.HasField("delivery_timestamp"):
        return DELAY
    if system.message_group:
        return FIFO
    if system.lite_topic:
        return LITE
    return PRIORITY if system.HasField("priority") else NORMAL


def to_broker(
    message: Message, message_type: str, topic: str, queue_id: int, peer: str
) -> BrokerMessage:
    """Convert a validated message for the broker. `peer` is the client's "host:port"."""
    system = message.system_properties
    return BrokerMessage(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        sys_flag=COMPRESSED if system.body_encoding == _GZIP else 0,
        born_timestamp_ms=max(0, milliseconds(system.born_timestamp)),
        born_host=peer if ":" in peer else "",
        encoded_properties=names.encode(_properties(message, message_type, topic)),
    )


def subscription(topic: str, expression: FilterExpression) -> Subscription:
    """Convert a consumer's subscription to a topic for the broker."""
    kind = Subscription.SQL92 if expression.type == FilterType.SQL else Subscription.TAG
    return Subscription(topic=topic, expression=expression.expression, expression_type=kind)


def _properties(message: Message, message_type: str, topic: str) -> dict[str, str]:
    """Return the properties to store with a message. The message id is the first property.

    The delivery attempt and the queue id that the client sent are ignored.
    """
    system = message.system_properties
    stored = {names.UNIQUE_KEY: system.message_id}
    if message.user_properties:
        stored.update(message.user_properties)
    if system.keys and (keys := names.KEY_SEPARATOR.join(filter(None, system.keys))):
        stored[names.KEYS] = keys
    for name, text in (
        (names.TAGS, system.tag),
        (names.SHARDING_KEY, system.message_group),
        (names.TRACE_CONTEXT, system.trace_context),
        (BORN_HOST, system.born_host),
        (LITE_TOPIC, system.lite_topic),
    ):
        if text:
            stored[name] = text
    if system.HasField("priority"):
        stored[names.PRIORITY] = str(system.priority)
    if system.HasField("delivery_timestamp"):
        stored[names.TIMER_DELIVER_MS] = str(delivery_ms(system.delivery_timestamp))
    if message_type == TRANSACTION:
        stored[names.TRANSACTION_PREPARED] = "true"
        stored[names.PRODUCER_GROUP] = topic
        if system.HasField("orphaned_transaction_recovery_duration"):
            immunity_s = milliseconds(system.orphaned_transaction_recovery_duration) // 1_000
            stored[names.CHECK_IMMUNITY_TIME] = str(immunity_s)
    return stored


def record_of(stored: StoredMessage) -> Record:
    """Convert a StoredMessage of a broker to a record."""
    record = Record()
    record.topic, record.body = stored.topic, stored.body
    record.queue_id, record.queue_offset = stored.queue_id, stored.queue_offset
    record.physical_offset, record.store_size = stored.physical_offset, stored.store_size
    record.flag, record.sys_flag = stored.flag, stored.sys_flag
    record.born_timestamp_ms = stored.born_timestamp_ms
    record.born_host_packed = message_id.pack_host(stored.born_host)
    record.store_timestamp_ms = stored.store_timestamp_ms
    record.store_host_packed = message_id.pack_host(stored.store_host)
    record.reconsume_times = stored.reconsume_times
    record.prepared_transaction_offset = stored.prepared_transaction_offset
    record.body_crc = stored.body_crc
    record.raw_properties = names.encode(stored.properties)
    record._properties = None
    return record


def from_record(record: Record, *, namespace: str, max_body_size: int) -> Message:
    """Convert one stored message for a client. `MessageEncoder` describes the arguments."""
    message = Message()
    MessageEncoder(message, namespace=namespace, max_body_size=max_body_size).encode(record)
    return message


class MessageEncoder:
    """Converts stored messages for clients, one after the other into the same `message`.

    Messages of one batch usually differ only in body, id, offset and times. Then only these fields
    are set. Use a new encoder for each batch, because protobuf does not free memory of `message`
    before `message` itself is freed.

    Compressed bodies are decompressed, because the public protocol only has GZIP, and SDKs disagree
    whether that means gzip or zlib. If decompression fails, the body stays compressed.

    A body of up to `max_body_size` bytes is always decompressed; a limit of 0 or less means
    MAX_BODY_BYTES. Larger bodies of one batch are decompressed up to MAX_BODY_BYTES in total.
    """

    def __init__(self, message: Message, *, namespace: str, max_body_size: int) -> None:
        self._message = message
        self._namespace = namespace
        self._max_body_size = max_body_size if max_body_size > 0 else MAX_BODY_BYTES
        self._left_for_large = MAX_BODY_BYTES
        self._shared: tuple[str, bytes, bytes, bytes, bytes] | None = None
        self._system = message.system_properties
        self._born = self._system.born_timestamp
        self._stored = self._system.store_timestamp
        # The times in the message now.
        self._born_ms: int | None = None
        self._stored_ms: int | None = None

    def encode(self, record: Record, receipt_handle: str = "", delivery_attempt: int = 0) -> None:
        """Convert one record into `message`.

        If `delivery_attempt` is 0, it is computed from the record's reconsume times.
        """
        # Compare all properties except the unique key with those of the last record. If they are
        # equal, `message` keeps the fields of that record.
        before, _name, rest = record.raw_properties.partition(_UNIQUE_KEY)
        unique, _, after = rest.partition(_VALUE_END)
        hosts = record.born_host_packed, record.store_host_packed
        shared = record.topic, before, after, *hosts
        if shared == self._shared and unique:
            system = self._system
            system.message_id = unique.decode("utf-8", "replace")
        else:
            system = self._encode_all(record)
            plain = (not before or before.endswith(_VALUE_END)) and _UNIQUE_KEY not in after
            self._shared = shared if plain else None
        message = self._message
        if record.sys_flag & COMPRESSED:
            message.body, system.body_encoding = self._inflated(record)
            system.body_digest.checksum = md5_of(message.body)
        else:
            message.body = body = record.body
            system.body_encoding = _IDENTITY
            system.body_digest.checksum = md5_of(body)
        if record.born_timestamp_ms != self._born_ms:
            self._born_ms = record.born_timestamp_ms
            _set_time(self._born, record.born_timestamp_ms)
        if record.store_timestamp_ms != self._stored_ms:  # equal for messages of one batch
            self._stored_ms = record.store_timestamp_ms
            _set_time(self._stored, record.store_timestamp_ms)
        system.queue_id, system.queue_offset = record.queue_id, record.queue_offset
        system.delivery_attempt = delivery_attempt or min(record.reconsume_times + 1, _MAX_INT32)
        if receipt_handle:
            system.receipt_handle = receipt_handle

    def _inflated(self, record: Record) -> tuple[bytes, Encoding]:
        limit = max(self._max_body_size, self._left_for_large)
        try:
            body = decompress(record.body, record.sys_flag, limit)
        except MqError:  # some SDKs can read it, by its first bytes
            return record.body, _GZIP
        if len(body) > self._max_body_size:
            self._left_for_large -= len(body)
        return body, _IDENTITY

    def _encode_all(self, record: Record) -> SystemProperties:
        """Clear `message`, and set the fields that several records of a batch may share."""
        # Set field by field: building and copying each submessage takes four times as long.
        message, stored = self._message, record.properties
        message.Clear()
        topic, namespace = message.topic, self._namespace
        topic.resource_namespace, topic.name = known_name(_origin_topic(record), namespace)
        self._system = system = message.system_properties
        self._born, self._stored = system.born_timestamp, system.store_timestamp
        self._born_ms = self._stored_ms = None
        system.message_id = stored.get(names.UNIQUE_KEY) or record.offset_message_id
        system.body_digest.type = _MD5
        system.message_type = stored_type(stored)
        system.born_host = stored.get(BORN_HOST) or record.born_host
        system.store_host = record.store_host
        for name, value in stored.items():
            if name not in names.RESERVED:
                message.user_properties[name] = value
            if field := _FIELDS.get(name):
                setattr(system, field, value)
        if keys := stored.get(names.KEYS):
            system.keys.extend(filter(None, keys.split(names.KEY_SEPARATOR)))
        # A producer of the classic protocol may write any text. A number out of the range of the
        # field would fail the whole batch.
        priority = names.whole_number(stored.get(names.PRIORITY, ""))
        if priority is not None and 0 <= priority <= _MAX_INT32:
            system.priority = priority
        deliver_ms = names.whole_number(stored.get(names.TIMER_DELIVER_MS, ""))
        if deliver_ms is not None and deliver_ms >= 0:
            _set_time(system.delivery_timestamp, deliver_ms)
        if topics.is_dead_letter(record.topic):
            origin = system.dead_letter_queue
            origin.topic = stored.get(names.DLQ_ORIGIN_TOPIC) or stored.get(names.RETRY_TOPIC, "")
            origin.message_id = stored.get(names.DLQ_ORIGIN_MESSAGE_ID) or stored.get(
                names.ORIGIN_MESSAGE_ID, ""
            )
        return system


def stored_type(stored: dict[str, str]) -> MessageType:
    """Derive the message type from the stored properties."""
    if stored.get(names.TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION
    # The delay level of a message in a retry topic belongs to the retry. The sender did not set it.
    level = names.DELAY in stored and names.RETRY_TOPIC not in stored
    if level or not _DELAY_NAMES.isdisjoint(stored):
        return MessageType.DELAY
    if names.SHARDING_KEY in stored:
        return MessageType.FIFO
    if LITE_TOPIC in stored:
        return MessageType.LITE
    return MessageType.PRIORITY if names.PRIORITY in stored else _NORMAL


def md5_of(body: bytes) -> str:
    """Return the MD5 of a body in upper-case hex, because some SDKs do not accept lower case."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def _origin_topic(record: Record) -> str:
    """Return the topic that the message was sent to, even if a retry topic stores it."""
    if topics.is_retry(record.topic):
        return record.properties.get(names.RETRY_TOPIC, record.topic)
    return record.topic


def _set_time(timestamp: Timestamp, epoch_ms: int) -> None:
    if not 0 <= epoch_ms <= MAX_TIME_MS:  # SDKs refuse a message with a time out of range
        epoch_ms = min(max(epoch_ms, 0), MAX_TIME_MS)
    timestamp.seconds, timestamp.nanos = epoch_ms // 1_000, epoch_ms % 1_000 * 1_000_000
