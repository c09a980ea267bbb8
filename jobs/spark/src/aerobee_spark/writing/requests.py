"""Messages as requests, each of one topic and place. Pure.

A request holds as many messages as cost the broker a few milliseconds. What has no place of its own
goes to any queue; of a message group or a chosen queue, to that one alone.
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

# Bodies and properties of a request; a larger message goes alone.
MOST_MESSAGES = 4_096
MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """`messages`: what it holds, to send them elsewhere. `queue`: None, any. `of_groups`: the queue
    is that of their message groups, and not one that the rows chose."""

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
    """Of each topic and place in the order of the rows. `queues_of`: where a topic can be written
    to. Raises RowError for a queue that does not exist, before the first request."""
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
    """The places of the messages, and the index of each message's."""
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
    there = f"{count} there" if count else f"brokers {', '.join(names)}"
    return (
        f"topic {queue.topic} has no queue {queue.queue_id} on broker {queue.broker_name} that "
        f"takes messages ({there}): choose another, or drop brokerName and queueId"
    )


def _chosen(messages: Messages, mask: arrays.Mask) -> Messages:
    return messages if mask.all() else messages.take(np.flatnonzero(mask))


# Sys flag and priority, which all messages of a request share.
_Alike = tuple[int, int | None, Messages]


def _alike(messages: Messages) -> Iterator[_Alike]:
    """In any order."""
    flags, priorities = messages.sys_flags, messages.priorities
    if (flags == flags[0]).all() and (priorities == priorities[0]).all():
        pairs = [(int(flags[0]), int(priorities[0]))]
    else:
        pairs = sorted(set(zip(flags.tolist(), priorities.tolist(), strict=True)))
    for flag, priority in pairs:
        part = _chosen(messages, (flags == flag) & (priorities == priority))
        yield flag, None if priority == NONE else priority, part


def _runs(messages: Messages) -> Iterator[_Alike]:
    """In the order of the rows: those of one queue. A chosen queue needs no priority."""
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
