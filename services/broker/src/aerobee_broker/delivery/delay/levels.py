"""Which queue of SCHEDULE_TOPIC_XXXX a delayed message waits in, and until when. No clock, no loop.

One queue per delay, so that each is in the order of its deliver times: queue n is delay level
n + 1; from 18 on, queues of the groups' own retry delays. The delay of such a message stands in its
property RETRY_DELAY_MS: with the log alone the queues and deliver times can be found again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
UNKNOWN_LEVEL_DELAY_MS = 1_000  # RocketMQ's, for a level that the table no longer has
# Of a delayed message; a delivered copy has none of them but DELAY.
_WAITING = (props.REAL_TOPIC, props.REAL_QUEUE_ID, RETRY_DELAY_MS)


class DelayQueues:
    """`is_empty`: whether everything in a queue has been delivered, so that it may change its
    delay. Set once the store is open, which needs `deliver_time` to open."""

    def __init__(self, levels_ms: Sequence[int]) -> None:
        self.levels_ms = tuple(levels_ms)
        self.is_empty: Callable[[int], bool] = lambda _: False
        # Whether a message was filed here that delivery does not see yet.
        self.unseen = False
        self._own: dict[int, int] = {}  # delay → queue id that takes new messages of it
        self._delays = dict(enumerate(self.levels_ms))  # queue id → delay
        self._filed: set[int] = set()  # own queues that a message is on its way to

    @property
    def queue_ids(self) -> list[int]:
        return sorted(self._delays)

    def delay_of(self, queue_id: int) -> int:
        """Milliseconds that messages wait in a queue."""
        return self._delays.get(queue_id, UNKNOWN_LEVEL_DELAY_MS)

    def name_of(self, queue_id: int) -> str:
        """For people: "level 3 (10 s)"."""
        seconds = f"{self.delay_of(queue_id) / 1000:g} s"
        return f"level {queue_id + 1} ({seconds})" if queue_id < FIRST_OWN_QUEUE else seconds

    def restore(self, queue_id: int, delay_ms: int) -> None:
        """A queue as before a restart. Of two with one delay the first takes new messages."""
        self._delays[queue_id] = delay_ms
        if queue_id >= FIRST_OWN_QUEUE:
            self._own.setdefault(delay_ms, queue_id)

    def arrived(self, queue_id: int) -> None:
        """What was filed in a queue can be seen: `is_empty` knows of it."""
        self.unseen = False
        self._filed.discard(queue_id)

    # ---- into the queue ----

    def by_level(self, message: NewMessage, properties: dict[str, str], level: int) -> NewMessage:
        """`message` as it waits for a delay level; `properties` are its decoded properties."""
        level = min(level, len(self.levels_ms))
        properties[props.DELAY] = str(level)
        properties.pop(RETRY_DELAY_MS, None)
        return self._waiting(message, properties, level - 1)

    def by_delay(
        self, message: NewMessage, properties: dict[str, str], delay_ms: int
    ) -> NewMessage:
        """`message` as it waits for any number of milliseconds above 0."""
        if delay_ms in self.levels_ms:
            return self.by_level(message, properties, self.levels_ms.index(delay_ms) + 1)
        properties.pop(props.DELAY, None)
        delay_ms, queue_id = self._queue_for(delay_ms)
        # Another of the same append must not give the queue another delay.
        self._filed.add(queue_id)
        properties[RETRY_DELAY_MS] = str(delay_ms)
        return self._waiting(message, properties, queue_id)

    def _queue_for(self, delay_ms: int) -> tuple[int, int]:
        """(delay, queue id): a queue of that delay. When all are taken, the next longer delay."""
        known = self._own.get(delay_ms)
        if known is not None:
            return delay_ms, known
        own_queues = range(FIRST_OWN_QUEUE, FIRST_OWN_QUEUE + MAX_OWN_QUEUES)
        unused = (queue_id for queue_id in own_queues if queue_id not in self._delays)
        idle = (queue_id for queue_id in own_queues if queue_id not in self._filed)
        delivered = (queue_id for queue_id in idle if self.is_empty(queue_id))
        queue_id = next(unused, None) or next(delivered, None)
        if queue_id is None:
            return self._next_longer(delay_ms)
        self._own.pop(self._delays.get(queue_id, 0), None)
        self._own[delay_ms] = queue_id
        self._delays[queue_id] = delay_ms
        return delay_ms, queue_id

    def _next_longer(self, delay_ms: int) -> tuple[int, int]:
        """(delay, queue id) of the queue whose delay is the least above; late, but never early. The
        longest of all when there is none above."""
        queues = self._own | {level: at for at, level in enumerate(self.levels_ms)}
        longer = [delay for delay in queues if delay > delay_ms]
        nearest = min(longer) if longer else max(queues)
        return nearest, queues[nearest]

    def _waiting(
        self, message: NewMessage, properties: dict[str, str], queue_id: int
    ) -> NewMessage:
        self.unseen = True
        properties[props.REAL_TOPIC] = message.topic
        properties[props.REAL_QUEUE_ID] = str(message.queue_id)
        return replace(
            message,
            topic=names.SCHEDULE_TOPIC,
            queue_id=queue_id,
            properties=props.encode(properties),
        )

    # ---- out of the queue ----

    def deliver_time(self, properties: bytes, store_timestamp_ms: int) -> int:
        """What stands in the consume queue in the place of the hash of the tags."""
        own = props.get(properties, _RETRY_DELAY_NAME)
        delay_ms = None if own is None else props.whole_number(own)
        if delay_ms is not None and delay_ms >= 0:
            return store_timestamp_ms + delay_ms
        level = props.whole_number(props.get(properties, _DELAY_NAME) or b"")
        index = -1 if level is None else level - 1
        known = 0 <= index < len(self.levels_ms)
        return store_timestamp_ms + (self.levels_ms[index] if known else UNKNOWN_LEVEL_DELAY_MS)


def delay_in(properties: dict[str, str]) -> int | None:
    """The own delay that a stored message waits for, in milliseconds."""
    delay_ms = props.whole_number(properties.get(RETRY_DELAY_MS, ""))
    return None if delay_ms is None or delay_ms < 0 else delay_ms


def destination(properties: dict[str, str]) -> tuple[str, int] | None:
    """(topic, queue id) that a waiting message is meant for; takes the marks of waiting away.

    None when the message says none.
    """
    topic, queue_id, _ = (properties.pop(name, "") for name in _WAITING)
    if names.is_retry(topic):
        properties.pop(props.DELAY, None)
    number = props.whole_number(queue_id)
    return (topic, number) if topic and number is not None and number >= 0 else None
