"""Group messages into requests. Each request is for one topic and queue.

A request is large enough to keep the broker busy for a few milliseconds. Messages without a chosen
queue and without a message group may go to any queue. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from aerobee_client.message_queue import MessageQueue
from aerobee_client.sending.columns import Columns, TopicQueues
from aerobee_spark.errors import RowError
from aerobee_spark.writing import arrays
from aerobee_spark.writing.arrays import NONE, Ints
from aerobee_spark.writing.encoding import Messages
from aerobee_wire.queues.choice import queue_of_group

# The limits of a request: messages, and bytes of bodies and properties. A message that exceeds the
# second limit is sent alone.
MOST_MESSAGES = 4_096
MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send messages of one topic.

    `columns` is the encoded form of `messages`. `messages` are kept so that they can be sent to
    another queue. If `queue` is None, the messages may go to any queue. `of_groups` is true if
    message groups determined the queue, and false if the rows chose it.
    """

    messages: Messages
    columns: Columns
    queue: MessageQueue | None = None
    priority: int | None = None
    of_groups: bool = False


def requests(
    messages: Messages,
    queues_of: Callable[[str], TopicQueues],
    *,
    most_messages: int = MOST_MESSAGES,
    most_bytes: int = MOST_BYTES,
) -> Iterator[Request]:
    """Group messages into requests, in row order for each chosen queue.

    Args:
        messages: the messages to send.
        queues_of: returns the writable queues of a topic.
        most_messages: most messages of a request.
        most_bytes: most bytes of bodies and properties in a request.

    Raises:
        RowError: a row chose a queue that does not exist. It is raised before the first request.
    """
    places, codes = _places(messages, queues_of)
    for code, (topic, queue, of_groups) in enumerate(places):
        alike = _runs if queue is not None else _alike
        for flags, priority, part in alike(_chosen(messages, codes == code)):
            for piece in _cut(part, most_messages, most_bytes):
                columns = _columns(piece, topic, flags)
                yield Request(piece, columns, queue, priority, of_groups)


_Place = tuple[str, MessageQueue | None, bool]


def _places(
    messages: Messages, queues_of: Callable[[str], TopicQueues]
) -> tuple[list[_Place], Ints]:
    """Return the distinct destinations of messages, and the index of each message's destination.

    A destination is a topic and a queue, or a topic without a queue.
    """
    topics, queues, groups = messages.topics, messages.queues, messages.groups
    keys = np.stack([topics.codes, queues.codes, groups.codes])
    if (keys == keys[:, :1]).all():
        different, codes = keys[:, :1].T, np.zeros(len(messages), np.int64)
    else:
        different, codes = np.unique(keys.T, axis=0, return_inverse=True)
        codes = codes.ravel()
    numbers: dict[_Place, int] = {}
    number_of = np.zeros(len(different), np.int64)
    for index, (topic_code, queue_code, group_code) in enumerate(different.tolist()):
        topic = str(topics.values[topic_code])
        known = queues_of(topic)
        place: _Place = (topic, None, False)
        if queue_code != NONE:
            broker, queue_id = queues.values[queue_code]
            queue = MessageQueue(topic, broker, queue_id)
            if queue not in known.writable:
                row = int(messages.rows[int(np.argmax(codes == index))])
                raise RowError(row, _no_queue(queue, known), "queueId")
            place = (topic, queue, False)
        elif group_code != NONE:
            place = (topic, queue_of_group(str(groups.values[group_code]), known.in_order), True)
        number_of[index] = numbers.setdefault(place, len(numbers))
    return list(numbers), number_of[codes]


def _no_queue(queue: MessageQueue, known: TopicQueues) -> str:
    names = sorted({each.broker_name for each in known.writable})
    count = sum(each.broker_name == queue.broker_name for each in known.writable)
    there = f"{count} queues there" if count else f"brokers: {', '.join(names)}"
    return (
        f"topic {queue.topic} has no writable queue {queue.queue_id} on broker "
        f"{queue.broker_name} ({there}): choose another, or remove brokerName and queueId"
    )


def _chosen(messages: Messages, mask: arrays.Mask) -> Messages:
    return messages if mask.all() else messages.take(np.flatnonzero(mask))


# A sys flag, a priority, and messages that share them, because a request has only one of each.
_Alike = tuple[int, int | None, Messages]


def _alike(messages: Messages) -> Iterator[_Alike]:
    """Group messages by sys flag and priority. This may change the order of the messages."""
    flags, priorities = messages.sys_flags, messages.priorities
    if (flags == flags[0]).all() and (priorities == priorities[0]).all():
        pairs = [(int(flags[0]), int(priorities[0]))]
    else:
        pairs = sorted(set(zip(flags.tolist(), priorities.tolist(), strict=True)))
    for flag, priority in pairs:
        part = _chosen(messages, (flags == flag) & (priorities == priority))
        yield flag, None if priority == NONE else priority, part


def _runs(messages: Messages) -> Iterator[_Alike]:
    """Split messages into parts with the same sys flag, in row order.

    The priority is None, because it only matters for messages that may go to any queue.
    """
    flags = messages.sys_flags
    starts = [0, *(np.flatnonzero(np.diff(flags)) + 1).tolist()]
    for start, stop in zip(starts, [*starts[1:], len(messages)], strict=True):
        part = messages if len(starts) == 1 else messages.part(start, stop)
        yield int(flags[start]), None, part


def _cut(messages: Messages, most_messages: int, most_bytes: int) -> Iterator[Messages]:
    sizes = arrays.sizes(messages.bodies) + arrays.sizes(messages.properties)
    ends = np.cumsum(sizes)
    start, count = 0, len(messages)
    while start < count:
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + most_bytes, side="right"))
        stop = min(max(fitting, start + 1), start + most_messages, count)
        whole = start == 0 and stop == count
        yield messages if whole else messages.part(start, stop)
        start = stop


def _columns(messages: Messages, topic: str, sys_flag: int) -> Columns:
    return Columns(
        topic,
        arrays.contents(messages.bodies),
        arrays.sizes(messages.bodies).tolist(),
        arrays.contents(messages.properties),
        arrays.sizes(messages.properties).tolist(),
        messages.flags.tolist() if messages.flags.any() else (),
        sys_flag,
    )
