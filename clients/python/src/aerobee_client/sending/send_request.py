"""Compress and encode messages as Send requests, and decode the responses. Does no I/O.

A batch in columns, with one topic and queue for all its messages, costs client and broker the
least. Delayed, half and compressed messages are encoded one by one. So are messages to a retry
topic, and messages that do not wait for the disk.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, repeat
from typing import NamedTuple

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.encoded_send import EncodedSend
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.send_result import SendResult
from aerobee_wire.compression import SYS_FLAGS, compress
from aerobee_wire.properties import decode
from aerobee_wire.topics import is_retry

# Limits of a request. They are large, so that the cost of a call per message is small.
RUN_MESSAGES = 512
RUN_BYTES = 1024 * 1024

# Makes a SendResult from an iterable of its fields, without running Python code for each.
_send_result = partial(tuple.__new__, SendResult)


class CompressedMessage(Message):
    """A copy of a message with a compressed body."""

    __slots__ = ("_given", "sys_flag")

    def __init__(self, given: Message, body: bytes, sys_flag: int) -> None:
        for name in Message.__slots__:
            setattr(self, name, getattr(given, name))
        self._given = given
        self.body = body
        self.sys_flag = sys_flag

    @property
    def given(self) -> Message:
        return self._given

    def encoded_properties(self, message_id: str, added: str = "") -> bytes:
        return self._given.encoded_properties(message_id, added)


class Compressor:
    """Compresses message bodies of at least `over` bytes.

    `method` is the compression method, a key of SYS_FLAGS, and `level` is its level.
    """

    def __init__(self, method: str, over: int, level: int) -> None:
        self._method = method
        self._over = over
        self._level = level

    def compressed(self, message: Message) -> Message:
        """Return the message with a compressed body.

        A message that is short, does not shrink, or is already compressed is returned unchanged.
        """
        body = message.body
        if len(body) < self._over or message.sys_flag:
            return message
        packed = compress(body, self._method, self._level)
        if len(packed) >= len(body):
            return message
        return CompressedMessage(message, packed, SYS_FLAGS[self._method])


def runs(messages: Sequence[Message], indexes: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Split messages into groups that share a request, and yield each group.

    Yield each run as a list of indexes, with the size of its bodies in bytes. All messages of a run
    have the same topic, encoding and priority, and the run is within the limits of a request. A
    message over RUN_BYTES is a run by itself.
    """
    groups: dict[Hashable, list[int]] = {}
    for index in indexes:
        message = messages[index]
        key: Hashable = message.topic
        if message.encoded_settings or message.system_properties or message.sys_flag:
            key = (message.topic, is_plain(message), message.priority)
        group = groups.get(key)
        if group is None:
            group = groups[key] = []
        group.append(index)
    for group in groups.values():
        yield from _cut(messages, group)


def _cut(messages: Sequence[Message], indexes: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    run: list[int] = []
    size = 0
    for index in indexes:
        length = len(messages[index].body)
        if run and (len(run) == RUN_MESSAGES or size + length > RUN_BYTES):
            yield run, size
            run, size = [], 0
        run.append(index)
        size += length
    if run:
        yield run, size


class Outgoing(NamedTuple):
    """A message ready to be sent. `properties` are encoded and include the message id."""

    message: Message
    message_id: str
    properties: bytes


# Makes an Outgoing from an iterable of its fields, as _send_result does.
outgoing_of = partial(tuple.__new__, Outgoing)


class Run(NamedTuple):
    """The messages of one request, as columns of the fields of Outgoing."""

    messages: Sequence[Message]
    message_ids: Sequence[str]
    properties: Sequence[bytes]

    def sends(self) -> list[Outgoing]:
        return list(map(Outgoing, *self))

    def part(self, indexes: Sequence[int]) -> Run:
        """Return the messages with these indexes, which must be ascending."""
        if len(indexes) == len(self.messages):
            return self
        messages, message_ids, properties = self
        return Run(
            [messages[index] for index in indexes],
            [message_ids[index] for index in indexes],
            [properties[index] for index in indexes],
        )


def run_of(sends: Iterable[Outgoing]) -> Run:
    """Combine one or more messages to the run of one request."""
    return Run(*zip(*sends, strict=True))


def request(
    run: Run,
    *,
    producer_group: str,
    born_timestamp_ms: int,
    default_queue_count: int,
) -> EncodedSend:
    """Encode a run of messages as a Send request. Call `set_queue` before sending it."""
    head = message_pb2.SendRequest(
        producer_group=producer_group, default_queue_count=default_queue_count
    )
    messages, _, properties = run
    first = messages[0]
    if is_plain(first):
        head.messages.extend(
            message_pb2.Message(
                topic=message.topic,
                body=message.body,
                properties=decode(encoded),
                flag=message.flag,
                sys_flag=message.sys_flag,
                born_timestamp_ms=born_timestamp_ms,
            )
            for message, encoded in zip(messages, properties, strict=True)
        )
        return EncodedSend(head)
    bodies = [message.body for message in messages]
    batch = head.batch
    batch.topic = first.topic
    batch.body_sizes.extend(map(len, bodies))
    batch.properties_sizes.extend(map(len, properties))
    batch.born_timestamp_ms = born_timestamp_ms
    flags = [message.flag for message in messages]
    if any(flags):
        batch.flags.extend(flags)
    return EncodedSend(head, bodies, properties)


def is_plain(message: Message) -> bool:
    """Return whether a message is encoded one by one, and not in columns.

    This is the case if the broker handles the message individually, or if it has its own sys flag.
    """
    has_settings = bool(message.encoded_settings or message.system_properties)
    return (
        (has_settings and (message.delayed or message.is_half or not message.wait_store_ok))
        or message.sys_flag != 0
        or is_retry(message.topic)
    )


def set_queue(request: EncodedSend, queue_id: int) -> None:
    """Set the queue id of all messages of a request."""
    if request.head.HasField("batch"):
        request.head.batch.queue_id = queue_id
    for message in request.head.messages:
        message.queue_id = queue_id


def results(
    response: message_pb2.SendResponse, message_ids: Sequence[str], queue: MessageQueue
) -> list[SendResult]:
    """Decode a response: return the result of each message of a request to `queue`."""
    host = response.store_host
    if not response.HasField("batch_result"):
        return [
            SendResult(
                message_id,
                queue,
                stored.queue_offset,
                stored.physical_offset,
                host,
                stored.recall_handle,
                stored.transaction_id,
            )
            for message_id, stored in zip(message_ids, response.results, strict=True)
        ]
    batch = response.batch_result
    if len(batch.physical_offsets) != len(message_ids):
        raise ValueError(f"{len(batch.physical_offsets)} results for {len(message_ids)} messages")
    columns = zip(
        message_ids,
        repeat(queue),
        count(batch.first_queue_offset),
        batch.physical_offsets,
        repeat(host),
        repeat(""),
        repeat(""),
        strict=False,
    )
    return list(map(_send_result, columns))
