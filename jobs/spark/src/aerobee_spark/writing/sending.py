"""Send the messages of a task: requests in flight, their order, and the number of sent messages.

Up to WINDOW requests are in flight. A queue that rows or message groups chose has only one at a
time, so that its messages keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol

from aerobee_client.message_queue import MessageQueue
from aerobee_client.sending.columns import Columns, TopicQueues
from aerobee_spark.errors import Code, MqError
from aerobee_spark.writing.encoding import Messages
from aerobee_spark.writing.pace import Pace
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
