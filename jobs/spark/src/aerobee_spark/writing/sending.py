"""Send the messages of a task in order, limit their rate, and count them.

Up to WINDOW requests are in flight. A queue that rows or message groups chose has only one request
in flight at a time, so that its messages keep their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from aerobee_client.message_queue import MessageQueue
from aerobee_client.sending.columns import Columns, TopicQueues
from aerobee_spark.errors import Code, MqError, RowError
from aerobee_spark.writing import arrays
from aerobee_spark.writing.arrays import NONE, Ints
from aerobee_spark.writing.encoding import Messages
from aerobee_wire.queues.choice import queue_of_group

# ---- requests ----
#
# Group messages into requests. Each request is for one topic and queue.
#
# A request is large enough to keep the broker busy for a few milliseconds. Messages without a
# chosen queue and without a message group may go to any queue.


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


WINDOW = 4
# A broker rejects messages with these codes if the queue no longer accepts messages. Its message
# groups then use other queues.
_MOVED = frozenset({Code.NO_PERMISSION, Code.QUEUE_NOT_EXIST})
# After these errors the broker may or may not have stored the messages.
_PERHAPS_STORED = frozenset(
    {
        Code.BROKER_UNREACHABLE,
        Code.REQUEST_TIMEOUT,
        Code.FLUSH_DISK_TIMEOUT,
        Code.FLUSH_SLAVE_TIMEOUT,
    }
)
# The wait after brokers know a task, before the task asks for the number of tasks. By then, brokers
# also know other tasks that start at the same time.
SETTLE_S = 0.3
LONGEST_S = 5.0  # after this time, a task that no broker knows assumes that it is alone
# The interval at which a task asks for the number of tasks. It is short while other tasks start.
FIRST_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 1.0
# A request of a slow task holds at most the messages that it may send in this time.
REQUEST_S = 0.1
POLL_S = 0.05


@dataclass(slots=True)
class Pace:
    """Limits the rate of one task to its share of `maxMessagesPerSecond`.

    The share is the rate divided by the number of tasks that send now. Spark does not pass this
    number to a task. So all tasks are producers of one group that is named after the job, and a
    task asks brokers for the number of producers.

    Args:
        rate: messages per second of all tasks together.
        sharers: returns the number of tasks that send now, including this task as soon as brokers
            know it. It returns None if no broker answers; then the share does not change.
        monotonic: returns the time in seconds.
        sleep: waits for a number of seconds.
    """

    rate: int
    sharers: Callable[[], int | None]
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _share: float = field(default=0.0, init=False)
    _ask_at_s: float = field(default=0.0, init=False)
    _interval_s: float = field(default=FIRST_INTERVAL_S, init=False)
    _due_s: float = field(default=0.0, init=False)

    def most_messages(self, most: int) -> int:
        """Return the largest number of messages for the next request, up to `most`."""
        if not self._share:
            self._begin()
        return max(1, min(most, int(self._share * REQUEST_S)))

    def wait(self, messages: int) -> None:
        """Wait until the rate allows this number of messages to be sent."""
        now_s = self.monotonic()
        if now_s >= self._ask_at_s:
            self._ask()
            now_s = self.monotonic()
        if self._due_s > now_s:
            self.sleep(self._due_s - now_s)
        self._due_s = max(self._due_s, now_s) + messages / self._share

    def _begin(self) -> None:
        until_s = self.monotonic() + LONGEST_S
        while not self.sharers() and self.monotonic() < until_s:
            self.sleep(POLL_S)
        self.sleep(SETTLE_S)
        self._ask()

    def _ask(self) -> None:
        sharers = self.sharers()
        if sharers is not None or not self._share:
            self._share = self.rate / max(1, sharers or 1)
        self._ask_at_s = self.monotonic() + self._interval_s
        self._interval_s = min(2 * self._interval_s, LONGEST_INTERVAL_S)


class Sender(Protocol):
    """The methods of ColumnSender that a task uses."""

    def send(
        self, columns: Columns, queue: MessageQueue | None = None, priority: int | None = None
    ) -> Future[None]: ...

    def queues(self, topic: str, *, fresh: bool = False) -> TopicQueues: ...


class TaskSends:
    """Sends the messages of one task.

    Args:
        sender: sends requests to brokers.
        ready: called with each topic before its first message. It raises MqError if the topic
            does not accept messages.
        pace: limits the rate. If None, messages are sent as fast as brokers accept them.
    """

    def __init__(self, sender: Sender, ready: Callable[[str], None], pace: Pace | None) -> None:
        self._sender = sender
        self._ready = ready
        self._pace = pace
        self._in_flight: dict[Future[None], Request] = {}
        # topic → the queues to which its message groups were last assigned
        self._divided: dict[str, TopicQueues] = {}
        self._topics: set[str] = set()
        # The number of messages that brokers acknowledged, and of messages in failed requests that
        # brokers may have stored.
        self.sent = 0
        self.unknown = 0

    def put(self, messages: Messages) -> None:
        """Send messages. While WINDOW requests are in flight, wait before the next request.

        Raises:
            RowError: a row cannot be sent. Then none of `messages` was sent.
            MqError: a request of this call or of an earlier call failed.
        """
        for topic in messages.topics.values:
            self._queues(str(topic))  # registers this producer at brokers, which count it
        most = MOST_MESSAGES if self._pace is None else self._pace.most_messages(MOST_MESSAGES)
        for request in requests(messages, self._queues, most_messages=most):
            if self._pace is not None:
                self._pace.wait(len(request.columns))
            self._start(request)

    def finish(self) -> None:
        """Wait for all requests in flight. Raise MqError if a request fails."""
        while self._in_flight:
            self._settle()

    def give_up(self) -> None:
        """Wait for the requests in flight after a failure, and count their messages.

        This does not raise if more requests fail.
        """
        wait(self._in_flight)
        for future, request in self._in_flight.items():
            self._count(request, future.exception())
        self._in_flight.clear()

    def _queues(self, topic: str) -> TopicQueues:
        if topic not in self._topics:
            self._ready(topic)
            self._topics.add(topic)
        known = self._sender.queues(topic)
        before = self._divided.setdefault(topic, known)
        if before.in_order != known.in_order:
            # Message groups use other queues now. To keep their order, wait until the messages to
            # the earlier queues have been sent.
            self.finish()
            self._divided[topic] = known
        return known

    def _start(self, request: Request) -> None:
        while len(self._in_flight) >= WINDOW or self._is_busy(request.queue):
            self._settle()
        future = self._sender.send(request.columns, request.queue, request.priority)
        self._in_flight[future] = request

    def _is_busy(self, queue: MessageQueue | None) -> bool:
        return queue is not None and any(
            request.queue == queue for request in self._in_flight.values()
        )

    def _settle(self) -> None:
        """Wait until at least one request ends, and count its messages.

        If a queue with message groups no longer accepts messages, send the messages to other
        queues. Raise the error of any other failed request.
        """
        done, _ = wait(self._in_flight, return_when=FIRST_COMPLETED)
        failures: list[tuple[Request, BaseException]] = []
        for future in done:
            request, error = self._in_flight.pop(future), future.exception()
            self._count(request, error)
            if error is not None:
                failures.append((request, error))
        for request, error in failures:
            if not (request.of_groups and isinstance(error, MqError) and error.code in _MOVED):
                raise error
            self._move(request, error)

    def _count(self, request: Request, error: BaseException | None) -> None:
        if error is None:
            self.sent += len(request.columns)
        elif isinstance(error, MqError) and error.code in _PERHAPS_STORED:
            self.unknown += len(request.columns)

    def _move(self, request: Request, refusal: MqError) -> None:
        """Send a refused request again, to the queues that its message groups use now.

        The order is kept, because a queue has only one request in flight. So later messages of
        these groups have not been sent. Raise `refusal` if a group still uses the same queue.
        """
        topic = request.columns.topic
        self._divided[topic] = self._sender.queues(topic, fresh=True)
        for moved in requests(request.messages, lambda _: self._divided[topic]):
            if moved.queue == request.queue:
                raise refusal
            self._start(moved)
