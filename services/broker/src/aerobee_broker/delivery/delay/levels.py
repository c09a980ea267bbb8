"""Redirects messages to a system topic in which they wait, and assigns queues to delays.

`redirected` gives a message a system topic, and stores its destination in two properties.
`destination_in` reads the destination. Timers and half messages use both functions, too
(`timer_format.py`, `transaction/half_messages.py`).

Each queue of SCHEDULE_TOPIC_XXXX has one delay, so its messages are in the order of their delivery
times. Queue n has delay level n + 1. The queues from 18 on have retry delays that consumer groups
define. Their messages contain the delay in the property RETRY_DELAY_MS, so that the broker can
restore the delay of a queue from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from aerobee_broker.config import MAX_DELAY_LEVELS
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import topics as names

RETRY_DELAY_MS = "RETRY_DELAY_MS"
_RETRY_DELAY_NAME = b"RETRY_DELAY_MS\x01"
_DELAY_NAME = b"DELAY\x01"

FIRST_OWN_QUEUE = MAX_DELAY_LEVELS
MAX_OWN_QUEUES = 64
UNKNOWN_LEVEL_DELAY_MS = 1_000  # RocketMQ's delay for a level that the table no longer has
# Properties of waiting messages only; the delivered copy does not have them.
_WAITING = (props.REAL_TOPIC, props.REAL_QUEUE_ID, RETRY_DELAY_MS)


def redirected(
    message: NewMessage, properties: dict[str, str], topic: str, queue_id: int
) -> NewMessage:
    """Return a message redirected to a queue of a system topic.

    `properties` are the decoded properties of `message`. Its destination is stored in the
    properties REAL_TOPIC and REAL_QID, as in RocketMQ.
    """
    properties[props.REAL_TOPIC] = message.topic
    properties[props.REAL_QUEUE_ID] = str(message.queue_id)
    return replace(message, topic=topic, queue_id=queue_id, properties=props.encode(properties))


def destination_in(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return (topic, queue id) of a message's destination, or None if its properties have none."""
    topic = properties.get(props.REAL_TOPIC, "")
    queue_id = props.whole_number(properties.get(props.REAL_QUEUE_ID, ""))
    return (topic, queue_id) if topic and queue_id is not None and queue_id >= 0 else None


class DelayQueues:
    """Assigns queues of SCHEDULE_TOPIC_XXXX to delays.

    `is_empty` returns whether every message of a queue has been delivered. Such a queue may get
    another delay. `log_state` returns a value that each append, and each rollback, changes.
    """

    def __init__(
        self,
        levels_ms: Sequence[int],
        is_empty: Callable[[int], bool],
        log_state: Callable[[], object],
    ) -> None:
        self.levels_ms = tuple(levels_ms)
        # Whether a message was redirected here since the last call of `arrived`.
        self.unconfirmed = False
        self._is_empty = is_empty
        self._own: dict[int, int] = {}  # delay of groups → queue id for new messages
        self._delays = dict(enumerate(self.levels_ms))  # queue id → delay
        # Queue id → state of the log when a message was redirected to it. Until the next append,
        # `is_empty` does not count this message. If the append fails, there is no such message.
        self._log_state = log_state
        self._redirected: dict[int, object] = {}

    def delay_of(self, queue_id: int) -> int:
        """Return the milliseconds that messages wait in a queue."""
        return self._delays.get(queue_id, UNKNOWN_LEVEL_DELAY_MS)

    def name_of(self, queue_id: int) -> str:
        """Return the name of a queue for logs and listings, like "level 3 (10 s)" or "90 s"."""
        seconds = f"{self.delay_of(queue_id) / 1000:g} s"
        return f"level {queue_id + 1} ({seconds})" if queue_id < FIRST_OWN_QUEUE else seconds

    def restore(self, queue_id: int, delay_ms: int) -> None:
        """Give a queue the delay that it had before a restart.

        If several queues have the same delay, new messages go to the queue that is restored first.
        """
        self._delays[queue_id] = delay_ms
        if queue_id >= FIRST_OWN_QUEUE:
            self._own.setdefault(delay_ms, queue_id)

    def arrived(self, queue_id: int) -> None:
        """Record that the messages redirected to a queue are visible, so `is_empty` counts them."""
        self.unconfirmed = False
        self._redirected.pop(queue_id, None)

    def by_level(self, message: NewMessage, properties: dict[str, str], level: int) -> NewMessage:
        """Return a message redirected to the queue of a delay level.

        `properties` are the decoded properties of `message`.
        """
        level = min(level, len(self.levels_ms))
        properties[props.DELAY] = str(level)
        properties.pop(RETRY_DELAY_MS, None)
        return self._waiting(message, properties, level - 1)

    def by_delay(
        self, message: NewMessage, properties: dict[str, str], delay_ms: int
    ) -> NewMessage:
        """Return a message redirected to a queue with a delay in milliseconds, above 0.

        `properties` are the decoded properties of `message`. If all queues are in use, the delay
        may be longer.
        """
        if delay_ms in self.levels_ms:
            return self.by_level(message, properties, self.levels_ms.index(delay_ms) + 1)
        properties.pop(props.DELAY, None)
        delay_ms, queue_id = self._queue_for(delay_ms)
        # The next message of the same append must not give the queue another delay.
        self._redirected[queue_id] = self._log_state()
        properties[RETRY_DELAY_MS] = str(delay_ms)
        return self._waiting(message, properties, queue_id)

    def _queue_for(self, delay_ms: int) -> tuple[int, int]:
        """Return (delay, queue id) for a retry delay.

        Assigns an unused or empty queue to the delay if no queue has it. If no such queue is left,
        returns the next longer delay with its queue.
        """
        known = self._own.get(delay_ms)
        if known is not None:
            return delay_ms, known
        own_queues = range(FIRST_OWN_QUEUE, FIRST_OWN_QUEUE + MAX_OWN_QUEUES)
        unused = (queue_id for queue_id in own_queues if queue_id not in self._delays)
        state = self._log_state()
        counted = (queue_id for queue_id in own_queues if self._redirected.get(queue_id) != state)
        empty = (queue_id for queue_id in counted if self._is_empty(queue_id))
        queue_id = next(unused, None) or next(empty, None)
        if queue_id is None:
            return self._next_longer(delay_ms)
        self._own.pop(self._delays.get(queue_id, 0), None)
        self._own[delay_ms] = queue_id
        self._delays[queue_id] = delay_ms
        return delay_ms, queue_id

    def _next_longer(self, delay_ms: int) -> tuple[int, int]:
        """Return the next longer delay that has a queue, and the id of the queue.

        If no delay is longer, returns the longest delay.
        """
        queues = self._own | {delay: index for index, delay in enumerate(self.levels_ms)}
        longer = [delay for delay in queues if delay > delay_ms]
        nearest = min(longer) if longer else max(queues)
        return nearest, queues[nearest]

    def _waiting(
        self, message: NewMessage, properties: dict[str, str], queue_id: int
    ) -> NewMessage:
        self.unconfirmed = True
        return redirected(message, properties, names.SCHEDULE_TOPIC, queue_id)


def deliver_time(levels_ms: Sequence[int], properties: bytes, store_timestamp_ms: int) -> int:
    """Return the delivery time of a delayed message, in milliseconds since the epoch.

    It is stored in the consume queue of SCHEDULE_TOPIC_XXXX, in the place of the tags code.
    `properties` are the encoded properties of the message.
    """
    own = props.get(properties, _RETRY_DELAY_NAME)
    delay_ms = None if own is None else props.whole_number(own)
    if delay_ms is not None and delay_ms >= 0:
        return store_timestamp_ms + delay_ms
    level = props.whole_number(props.get(properties, _DELAY_NAME) or b"")
    index = -1 if level is None else level - 1
    known = 0 <= index < len(levels_ms)
    return store_timestamp_ms + (levels_ms[index] if known else UNKNOWN_LEVEL_DELAY_MS)


def own_delay(properties: dict[str, str]) -> int | None:
    """Return the retry delay, in milliseconds, for which a stored message waits.

    Returns None if the message waits for a delay level.
    """
    delay_ms = props.whole_number(properties.get(RETRY_DELAY_MS, ""))
    return None if delay_ms is None or delay_ms < 0 else delay_ms


def take_destination(properties: dict[str, str]) -> tuple[str, int] | None:
    """Return (topic, queue id) of a waiting message's destination, or None if it has none.

    Removes the properties that only waiting messages have from `properties`. For a retry, also
    removes the delay level.
    """
    target = destination_in(properties)
    if names.is_retry(properties.get(props.REAL_TOPIC, "")):
        properties.pop(props.DELAY, None)
    for name in _WAITING:
        properties.pop(name, None)
    return target
