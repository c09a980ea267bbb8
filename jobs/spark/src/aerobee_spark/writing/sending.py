"""Send the messages of a task: requests in flight, their order and rate, and a count.

Up to WINDOW requests are in flight. A queue that rows or message groups chose has only one at a
time, so that its messages keep their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Protocol

from aerobee_client.message_queue import MessageQueue
from aerobee_client.sending.columns import Columns, TopicQueues
from aerobee_spark.errors import Code, MqError
from aerobee_spark.writing.encoding import Messages
from aerobee_spark.writing.requests import MOST_MESSAGES, Request, requests

WINDOW = 4
# A queue rejects messages with these codes after it was moved: its message groups use another one.
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
# After brokers know a task, it waits this long before it asks for the number of tasks: tasks that
# start at the same time are known by then.
SETTLE_S = 0.3
LONGEST_S = 5.0  # after this, a task that no broker knows assumes that it is alone
# Interval between two requests: short at first, while other tasks start too.
FIRST_INTERVAL_S = 0.1
LONGEST_INTERVAL_S = 1.0
# A request of a slow task holds at most the messages that it may send in this time.
REQUEST_S = 0.1
POLL_S = 0.05


@dataclass(slots=True)
class Pace:
    """The share of one task of `maxMessagesPerSecond`.

    Spark does not pass the number of tasks to a task. All tasks are producers of one group that is
    named after the job, so the brokers know how many send now. A task asks them and divides the
    rate.

    Args:
        rate: messages per second of all tasks together.
        sharers: returns the number of tasks that send now, including this one as soon as brokers
            know it. None if no broker answers; the share stays unchanged then.
        monotonic: clock in seconds.
        sleep: waits for seconds.
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
        """Return the size of the next request in messages, at most `most`."""
        if not self._share:
            self._begin()
        return max(1, min(most, int(self._share * REQUEST_S)))

    def wait(self, messages: int) -> None:
        """Wait until this number of messages may be sent."""
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
    """The calls of ColumnSender that a task uses."""

    def send(
        self, columns: Columns, queue: MessageQueue | None = None, priority: int | None = None
    ) -> Future[None]: ...

    def queues(self, topic: str, *, fresh: bool = False) -> TopicQueues: ...


class TaskSends:
    """The sends of one task.

    Args:
        sender: sends requests to brokers.
        ready: called with each topic before its first message. It raises MqError if the topic
            does not accept messages.
        pace: limits the rate; None sends as fast as the brokers accept.
    """

    def __init__(self, sender: Sender, ready: Callable[[str], None], pace: Pace | None) -> None:
        self._sender = sender
        self._ready = ready
        self._pace = pace
        self._in_flight: dict[Future[None], Request] = {}
        # For each topic with message groups: the queues among which the groups were last divided.
        self._divided: dict[str, TopicQueues] = {}
        self._topics: set[str] = set()
        # Messages that brokers acknowledged, and messages of failed requests that may be stored.
        self.sent = 0
        self.unknown = 0

    def put(self, messages: Messages) -> None:
        """Send messages, after waiting for a free place in the window.

        Raises:
            RowError: a row cannot be sent; none of `messages` was sent.
            MqError: a request failed, perhaps an earlier one.
        """
        for topic in messages.topics.values:
            self._queues(str(topic))  # registers this producer at brokers, which count it
        most = MOST_MESSAGES if self._pace is None else self._pace.most_messages(MOST_MESSAGES)
        for request in requests(messages, self._queues, most_messages=most):
            if self._pace is not None:
                self._pace.wait(len(request.columns))
            self._start(request)

    def finish(self) -> None:
        """Wait for all requests in flight. Raise as `put` does."""
        while self._in_flight:
            self._settle()

    def give_up(self) -> None:
        """Wait for the requests in flight after a failure, and count their messages."""
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
            # Message groups now use other queues: finish the messages to the earlier ones first.
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
        """Wait until a request ends."""
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
        """Send messages of message groups again, to the queues that the groups use now.

        No later message of these groups has been sent: their queue was busy.
        """
        topic = request.columns.topic
        self._divided[topic] = self._sender.queues(topic, fresh=True)
        for moved in requests(request.messages, lambda _: self._divided[topic]):
            if moved.queue == request.queue:
                raise refusal
            self._start(moved)
