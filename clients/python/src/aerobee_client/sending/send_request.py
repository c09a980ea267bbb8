"""Encoding messages as Send requests, and decoding the responses. Pure.

A batch in columns, one topic and queue for all its messages, costs both sides the least. Delayed
messages and those to a retry topic go one by one in a request, because the broker routes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def runs(messages: Sequence[Message]) -> Iterator[list[int]]:
    """Splits `messages` into runs, one for each request: their indexes. A run has one topic, is all
    delayed or not at all, and within the limits; a message over RUN_BYTES is a run by itself."""
    groups: dict[tuple[str, bool], list[int]] = {}
    for index, message in enumerate(messages):
        groups.setdefault((message.topic, message.delayed), []).append(index)
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


def request(
    messages: Sequence[Message],
    message_ids: Sequence[str],
    *,
    producer_group: str,
    born_timestamp_ms: int,
    default_queue_count: int,
) -> EncodedSend:
    """The request for one run of messages. Its queue is still to be set."""
    head = message_pb2.SendRequest(
        producer_group=producer_group, default_queue_count=default_queue_count
    )
    if messages[0].delayed or is_retry(messages[0].topic):
        head.messages.extend(
            message_pb2.Message(
                topic=message.topic,
                body=message.body,
                properties=decode(message.encoded_properties(message_id)),
                flag=message.flag,
                born_timestamp_ms=born_timestamp_ms,
            )
            for message, message_id in zip(messages, message_ids, strict=True)
        )
        return EncodedSend(head)
    bodies = [message.body for message in messages]
    properties = [
        message.encoded_properties(message_id)
        for message, message_id in zip(messages, message_ids, strict=True)
    ]
    batch = head.batch
    batch.topic = messages[0].topic
    batch.body_sizes.extend(map(len, bodies))
    batch.properties_sizes.extend(map(len, properties))
    batch.born_timestamp_ms = born_timestamp_ms
    flags = [message.flag for message in messages]
    if any(flags):
        batch.flags.extend(flags)
    return EncodedSend(head, bodies, properties)


def set_queue(request: EncodedSend, queue_id: int) -> None:
    """Sets the queue of all messages of `request`."""
    if request.head.HasField("batch"):
        request.head.batch.queue_id = queue_id
    for message in request.head.messages:
        message.queue_id = queue_id


def results(
    response: message_pb2.SendResponse, message_ids: Sequence[str], queue: MessageQueue
) -> list[SendResult]:
    """The results of one run that was sent to `queue`."""
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
            )
            for message_id, stored in zip(message_ids, response.results, strict=True)
        ]
    batch = response.batch_result
    first = batch.first_queue_offset
    return [
        SendResult(message_id, queue, first + index, physical_offset, host)
        for index, (message_id, physical_offset) in enumerate(
            zip(message_ids, batch.physical_offsets, strict=True)
        )
    ]
