"""Turning messages into Send requests, many at a time, and responses into results. Pure.

Bulk goes in the columnar form, one topic and queue per request, which costs the least on both
sides; delayed messages and those to a retry topic go in the plain form, because the broker decides
about each by itself.
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

# One request: large enough that the call costs little per message, small enough to flow.
RUN_MESSAGES = 512
RUN_BYTES = 1024 * 1024


def runs(messages: Sequence[Message]) -> Iterator[list[int]]:
    """Indexes of the messages of each request: one topic, all delayed or none, within the limits. A
    message over the byte limit travels alone."""
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
    """Of one run. The queue is to be set."""
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
    """Sends all messages of `request` to this queue."""
    if request.head.HasField("batch"):
        request.head.batch.queue_id = queue_id
    for message in request.head.messages:
        message.queue_id = queue_id


def results(
    response: message_pb2.SendResponse, message_ids: Sequence[str], queue: MessageQueue
) -> list[SendResult]:
    """Of one run that was sent to `queue`."""
    host = response.store_host
    if not response.HasField("batch_result"):
        return [
            SendResult(
                message_id, queue, one.queue_offset, one.physical_offset, host, one.recall_handle
            )
            for message_id, one in zip(message_ids, response.results, strict=True)
        ]
    batch = response.batch_result
    first = batch.first_queue_offset
    return [
        SendResult(message_id, queue, first + index, physical_offset, host)
        for index, (message_id, physical_offset) in enumerate(
            zip(message_ids, batch.physical_offsets, strict=True)
        )
    ]
