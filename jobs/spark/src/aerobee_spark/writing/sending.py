"""A task's messages on their way to brokers: requests in flight, their order, and how many were
sent.

Requests leave one after the other and up to WINDOW are in flight. To one queue that the rows or
their message groups chose, one is at a time, so that their order stays.
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
# Refusals of a queue that takes no messages any more: a message group has another one then.
_MOVED = frozenset({Code.NO_PERMISSION, Code.QUEUE_NOT_EXIST})
# After these nobody knows whether the broker has stored the messages.
_PERHAPS_STORED = frozenset(
    {
        Code.BROKER_UNREACHABLE,
        Code.REQUEST_TIMEOUT,
        Code.FLUSH_DISK_TIMEOUT,
        Code.FLUSH_SLAVE_TIMEOUT,
    }
)


class Sender(Protocol):
    """As ColumnSender."""

    def send(
        self, columns: Columns, queue: MessageQueue | None = None, priority: int | None = None
    ) -> Future[None]: ...

    def queues(self, topic: str, *, fresh: bool = False) -> TopicQueues: ...


class TaskSends:
    """Of one task. `ready`: is told of each topic before its first message, and raises MqError when
    it cannot be sent to. `pace`: None, as fast as brokers take them."""

    def __init__(self, sender: Sender, ready: Callable[[str], None], pace: Pace | None) -> None:
        self._sender = sender
        self._ready = ready
        self._pace = pace
        self._in_flight: dict[Future[None], Request] = {}
        # Of each topic with message groups: the queues among which they were divided last.
        self._divided: dict[str, TopicQueues] = {}
        self._topics: set[str] = set()
        # Messages that brokers have acknowledged; those of failed requests that may be stored.
        self.sent = 0
        self.unknown = 0

    def put(self, messages: Messages) -> None:
        """Sends them, or waits until there is room for that. Raises RowError before the first of
        them is sent; MqError when a request has failed, perhaps an earlier one."""
        for topic in messages.topics.values:
            self._queues(str(topic))  # from now on the brokers know this task, which the pace needs
        most = MOST_MESSAGES if self._pace is None else self._pace.most_messages(MOST_MESSAGES)
        for request in requests(messages, self._queues, most_messages=most):
            if self._pace is not None:
                self._pace.wait(len(request.columns))
            self._start(request)

    def finish(self) -> None:
        """Waits for what is in flight. Raises as `put`."""
        while self._in_flight:
            self._settle()

    def give_up(self) -> None:
        """After a failure: waits for what is in flight, and counts it."""
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
            # Message groups have other queues now: what went to the earlier ones comes first.
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
        """Waits until a request has ended."""
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
        """Sends those of message groups to the queues that their groups have by now. Nothing that
        follows them in their order has been sent: their queue was busy."""
        topic = request.columns.topic
        self._divided[topic] = self._sender.queues(topic, fresh=True)
        for moved in requests(request.messages, lambda _: self._divided[topic]):
            if moved.queue == request.queue:
                raise refusal
            self._start(moved)
