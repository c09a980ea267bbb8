"""Encoding messages as Send requests, and decoding the responses. Pure.

A batch in columns, one topic and queue for all its messages, costs both sides the least. Delayed,
half and compressed messages, those to a retry topic and those that do not wait for the disk go one
by one in a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.encoded_send import EncodedSend
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.send_result import SendResult
from aerobee_wire.properties import decode
from aerobee_wire.topics import is_retry

# Limits of a request: large enough that the cost of the call is small per message.
RUN_MESSAGES = 512
RUN_BYTES = 1024 * 1024


def runs(messages: Sequence[Message], indexes: Sequence[int]) -> Iterator[list[int]]:
    """Splits those of `messages` with these indexes into runs, one for each request: their indexes.
    A run has one topic, form and priority, and keeps within the limits; a message over RUN_BYTES is
    a run by itself."""
    groups: dict[tuple[str, bool, int | None], list[int]] = {}
    for index in indexes:
        message = messages[index]
        key = (message.topic, is_plain(message), message.priority)
        groups.setdefault(key, []).append(index)
    for group in groups.values():
        yield from _cut(messages, group)


def _cut(messages: Sequence[Message], indexes: Sequence[int]) -> Iterator[list[int]]:
    run: list[int] = []
    size = 0
    for index in indexes:
        length = len(messages[index].body)
        if run and (len(run) == RUN_MESSAGES or size + length > RUN_BYTES):
            yield run
            run, size = [], 0
        run.append(index)
        size += length
    if run:
        yield run


class Outgoing(NamedTuple):
    """A message on its way. `properties`: encoded, with the message id."""

    message: Message
    message_id: str
    properties: bytes


def outgoing(message: Message, message_id: str) -> Outgoing:
    """Raises MESSAGE_ILLEGAL when its properties are too large."""
    return Outgoing(message, message_id, message.encoded_properties(message_id))


def request(
    sends: Sequence[Outgoing],
    *,
    producer_group: str,
    born_timestamp_ms: int,
    default_queue_count: int,
) -> EncodedSend:
    """The request for one run of messages. Its queue is still to be set."""
    head = message_pb2.SendRequest(
        producer_group=producer_group, default_queue_count=default_queue_count
    )
    first = sends[0].message
    if is_plain(first):
        head.messages.extend(
            message_pb2.Message(
                topic=message.topic,
                body=message.body,
                properties=decode(properties),
                flag=message.flag,
                sys_flag=message.sys_flag,
                born_timestamp_ms=born_timestamp_ms,
            )
            for message, _, properties in sends
        )
        return EncodedSend(head)
    bodies = [send.message.body for send in sends]
    properties = [send.properties for send in sends]
    batch = head.batch
    batch.topic = first.topic
    batch.body_sizes.extend(map(len, bodies))
    batch.properties_sizes.extend(map(len, properties))
    batch.born_timestamp_ms = born_timestamp_ms
    flags = [send.message.flag for send in sends]
    if any(flags):
        batch.flags.extend(flags)
    return EncodedSend(head, bodies, properties)


def is_plain(message: Message) -> bool:
    """Whether it goes message by message, and not in columns: the broker decides for each, or it
    has a sys flag of its own."""
    return (
        message.delayed
        or message.is_half
        or message.sys_flag != 0
        or not message.wait_store_ok
        or is_retry(message.topic)
    )


def set_queue(request: EncodedSend, queue_id: int) -> None:
    """Sets the queue of all messages of `request`."""
    if request.head.HasField("batch"):
        request.head.batch.queue_id = queue_id
    for message in request.head.messages:
        message.queue_id = queue_id


def results(
    response: message_pb2.SendResponse, sends: Sequence[Outgoing], queue: MessageQueue
) -> list[SendResult]:
    """The results of one request that was sent to `queue`."""
    host = response.store_host
    if not response.HasField("batch_result"):
        return [
            SendResult(
                send.message_id,
                queue,
                stored.queue_offset,
                stored.physical_offset,
                host,
                stored.recall_handle,
                stored.transaction_id,
            )
            for send, stored in zip(sends, response.results, strict=True)
        ]
    batch = response.batch_result
    first = batch.first_queue_offset
    return [
        SendResult(send.message_id, queue, first + index, physical_offset, host)
        for index, (send, physical_offset) in enumerate(
            zip(sends, batch.physical_offsets, strict=True)
        )
    ]
