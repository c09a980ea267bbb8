"""Send the messages of a task in order, limit their rate, and count them.

Up to WINDOW requests are in flight. A queue that rows or message groups chose has only one request
in flight at a time, so that its messages keep their order.
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
