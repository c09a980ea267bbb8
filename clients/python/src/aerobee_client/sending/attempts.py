"""Decide whether a send is retried, at which broker and after which pause. Does no I/O.

Another broker is tried at once. A broker that failed before is retried after a pause, while the
send has time left, because an unavailable broker may come back. A refusal uses up one of the
`retries`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.producer import ProducerOptions
from aerobee_wire.backoff import Backoff
from aerobee_wire.status import Code, MqError

# Refusals after which another broker is tried, as in RocketMQ's producer.
RETRIED_CODES = frozenset(
    {
        Code.SYSTEM_ERROR,
        Code.SYSTEM_BUSY,
        Code.SERVICE_NOT_AVAILABLE,
        Code.NO_PERMISSION,
        Code.TOPIC_NOT_EXIST,
        Code.QUEUE_NOT_EXIST,
    }
)
# With these codes, the message is stored, but may not be durable or replicated.
STORED_CODES = frozenset({Code.FLUSH_DISK_TIMEOUT, Code.FLUSH_SLAVE_TIMEOUT})
# With these codes, the broker is down or not ready yet, and did not refuse the message.
ABSENT_CODES = frozenset(
    {Code.BROKER_UNREACHABLE, Code.BROKER_NOT_EXIST, Code.SERVICE_NOT_AVAILABLE}
)
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5


class Attempts:
    """Counts the attempts of one request, and decides about retries.

    `queue` is the queue that the caller chose, if any. `deadline_ms` is a time of a monotonic
    clock. `avoid` is the broker of the last attempt. `on_failure` is called with the error of each
    attempt that is followed by another attempt.
    """

    __slots__ = (
        "_backoff",
        "_not_store_ok",
        "_on_failure",
        "_retries_left",
        "_tried",
        "avoid",
        "deadline_ms",
        "queue",
    )

    def __init__(
        self,
        queue: MessageQueue | None,
        options: ProducerOptions,
        deadline_ms: int,
        on_failure: Callable[[MqError], None] = lambda _: None,
    ) -> None:
        self.deadline_ms = deadline_ms
        self.avoid: str | None = None
        self.queue = queue
        self._on_failure = on_failure
        self._retries_left = options.retries
        self._not_store_ok = options.retry_another_broker_when_not_store_ok
        self._tried: set[str] | None = None
        self._backoff: Backoff | None = None

    def pause_after(
        self, error: MqError, target: MessageQueue, queues: Sequence[MessageQueue], now_ms: int
    ) -> float | None:
        """Return the pause in seconds after a failure at `target`, or None to give up.

        `target` is the queue of the failed attempt, and `queues` are all queues of the topic.
        """
        if error.code in STORED_CODES:
            if not (self._not_store_ok and self._has_other(queues, target)):
                return None
        elif not (error.retryable or error.code in RETRIED_CODES):
            return None
        if error.code is Code.QUEUE_NOT_EXIST and self.queue is not None:
            return None
        if error.code not in ABSENT_CODES:
            if not self._retries_left:
                return None
            self._retries_left -= 1
        pause_s = 0.0
        if self._is_tried(target.broker_name) or not self._has_other(queues, target):
            pause_s = self._pause_s(error)
        if now_ms + pause_s * 1000 >= self.deadline_ms:
            return None
        self.avoid = target.broker_name
        self._on_failure(error)
        return pause_s

    def _is_tried(self, broker_name: str) -> bool:
        """Return whether this broker has failed before, and record that it has failed now."""
        if self._tried is None:
            self._tried = set()
        tried = broker_name in self._tried
        self._tried.add(broker_name)
        return tried

    def _has_other(self, queues: Sequence[MessageQueue], target: MessageQueue) -> bool:
        """Return whether the send may go to another broker than the broker of `target`."""
        return self.queue is None and any(
            queue.broker_name != target.broker_name for queue in queues
        )

    def _pause_s(self, error: MqError) -> float:
        """Return the pause in seconds before a broker is retried after `error`."""
        if error.retry_after_ms is not None:
            return error.retry_after_ms / 1000
        if error.code not in ABSENT_CODES:
            return 0.0
        if self._backoff is None:
            self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        return self._backoff.next_s()
