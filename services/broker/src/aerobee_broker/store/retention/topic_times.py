"""Expires the messages of topics that have a retention time of their own.

All topics share one log, so expiry deletes nothing. It raises the minimum offset of a queue above
the messages that are older than the time of their topic. A log file is deleted when no topic needs
it: `unneeded` and `released` count these files for `Retention`.

Nothing is stored here. The store times of messages and the settings of topics decide, so that a
restart and each replica get the same minimum offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from aerobee_broker.errors import StoreReadError
from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.log.commit_log import CommitLog
from aerobee_wire.status import MqError

_SEARCHED_A_STEP = 256  # queues whose first message is read: 20 µs each, 300 µs if it has expired
_VISITED_A_STEP = 4_096  # queues whose next time is compared: 0.1 µs each
_SCANNED_A_RUN = 1_024  # queues whose first unit is read: 5 µs each
_PAUSE_MS = 10_000  # between two searches of one queue
# Until an empty queue is visited again. A slave may receive messages that are as old as its lag.
_EMPTY_PAUSE_MS = 60_000

# (topic, queue id, queue offset) → store time in ms, or 0 if there is no message.
StoreTimestamp = Callable[[str, int, int], int]
# (topic, queue id, store time in ms) → queue offset of the first message at or after this time.
SearchOffset = Callable[[str, int, int], int]


@dataclass(frozen=True, slots=True)
class TopicTime:
    """The retention time of a topic.

    `reserved_ms` is None for the time of the broker. Messages stored before `expired_before_ms`
    (milliseconds since the epoch) have expired under an earlier, shorter time of the topic.
    """

    reserved_ms: int | None = None
    expired_before_ms: int = 0

    def threshold_ms(self, now_ms: int) -> int:
        """Return the store time (ms) before which messages have expired."""
        if self.reserved_ms is None:
            return self.expired_before_ms
        return max(self.expired_before_ms, now_ms - self.reserved_ms)


@dataclass(slots=True)
class _Scan:
    """The queues that may have readable messages below one physical offset.

    `own` are those of topics with a time of their own. A queue that is removed stays out, because
    its later messages are at the end of the log.
    """

    own: list[ConsumeQueue]
    others: list[ConsumeQueue]


@dataclass(slots=True, eq=False)
class TopicTimes:
    """The retention times of topics. `use` sets them; without any, the other methods are free."""

    log: CommitLog
    dispatch: Dispatch
    store_timestamp: StoreTimestamp
    search_offset: SearchOffset
    _times: Mapping[str, TopicTime] = field(default_factory=dict, init=False)
    _is_journal: Callable[[str], bool] = field(default=lambda topic: False, init=False)
    _due_ms: dict[ConsumeQueue, int] = field(default_factory=dict, init=False)
    _left: list[ConsumeQueue] = field(default_factory=list, init=False)  # to visit in this round
    _scans: dict[int, _Scan] = field(default_factory=dict, init=False)  # physical offset → scan
    _now_ms: int = field(default=0, init=False)  # of the last step

    def use(
        self,
        times: Mapping[str, TopicTime],
        is_journal: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """Use these times from the next step on.

        Args:
            times: Topic → its time. Topics of the type LITE must not be among them.
            is_journal: Whether a topic is one of the broker itself. Such a topic protects what it
                needs (`Cleaning`).
        """
        if times != self._times:
            self._due_ms.clear()
            self._left.clear()
            self._scans.clear()
        self._times, self._is_journal = dict(times), is_journal

    @property
    def in_use(self) -> bool:
        return bool(self._times)

    def has_expired(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Return whether a message is below the minimum offset that the time of its topic set."""
        if topic not in self._times:
            return False
        queue = self.dispatch.queues.get(topic, queue_id)
        return queue is not None and queue_offset < queue.min_offset

    def expiry_ms(self, topic: str, stored_ms: int) -> int | None:
        """Return when a message expires, in ms since the epoch.

        Return None if its topic does not have a time of its own.
        """
        time = self._times.get(topic)
        return None if time is None or time.reserved_ms is None else stored_ms + time.reserved_ms

    # ---- expiry ----

    def expire_all(self, now_ms: int) -> None:
        """Raise the minimum offsets of all queues, before the first read after a start."""
        for queue in self._own():
            self._expire(queue, now_ms)

    def step(self, now_ms: int) -> None:
        """Raise the minimum offsets of a bounded number of queues. Call it once a second."""
        if not self._times:
            return
        if now_ms < self._now_ms:  # the clock was set back, perhaps from a wrong time
            self._due_ms = dict.fromkeys(self._due_ms, 0)
        self._now_ms = now_ms
        if not self._left:
            self._left = list(self._own())
        searched = 0
        for _ in range(min(_VISITED_A_STEP, len(self._left))):
            queue = self._left.pop()
            if not queue.deleted and self._due_ms.get(queue, 0) <= now_ms:
                self._expire(queue, now_ms)
                searched += 1
                if searched == _SEARCHED_A_STEP:
                    break
        else:
            if not self._left:  # queues of deleted topics are forgotten
                self._due_ms = {q: due for q, due in self._due_ms.items() if not q.deleted}

    def _own(self) -> Iterator[ConsumeQueue]:
        queues = self.dispatch.queues
        for topic in self._times:
            for queue_id in queues.queue_ids(topic):
                queue = queues.get(topic, queue_id)
                if queue is not None:
                    yield queue

    def _expire(self, queue: ConsumeQueue, now_ms: int) -> None:
        """Raise the minimum offset of a queue.

        The first visit after a change of the times starts at the first record in the log. A slave
        may have expired too much, before it learned that the time of the topic was raised. If the
        log cannot be read at the moment, the next round retries.
        """
        topic, queue_id = queue.topic.name, queue.queue_id
        time = self._times[topic]
        threshold_ms = time.threshold_ms(now_ms)
        before = queue.min_offset
        if queue not in self._due_ms:
            queue.min_offset = queue.kept_from
        try:
            first_ms = self.store_timestamp(topic, queue_id, queue.min_offset)
            if 0 < first_ms < threshold_ms:
                queue.min_offset = self.search_offset(topic, queue_id, threshold_ms)
                first_ms = self.store_timestamp(topic, queue_id, queue.min_offset)
        except (StoreReadError, MqError):
            queue.min_offset = max(queue.min_offset, before)
            self._due_ms[queue] = now_ms + _PAUSE_MS
            return
        if first_ms == 0 or time.reserved_ms is None:
            self._due_ms[queue] = now_ms + _EMPTY_PAUSE_MS
        else:
            self._due_ms[queue] = max(first_ms + time.reserved_ms, now_ms + _PAUSE_MS)

    # ---- log files ----

    def released(self, count: int) -> int:
        """Return how many of the `count` oldest files no topic with its own time needs."""
        if not self._times:
            return count
        return self._passed(count, with_others=False)

    def unneeded(self, count: int) -> int:
        """Return how many of the `count` oldest files no topic needs, whatever their age.

        Without topics that have a time of their own, return 0: files then expire by age alone.
        """
        if not self._times:
            return 0
        return self._passed(count, with_others=True)

    def _passed(self, count: int, *, with_others: bool) -> int:
        """Return how many of the `count` oldest files are below all messages that are needed.

        A call examines at most 1,024 queues. The next call continues.
        """
        starts = self.log.starts
        self._scans = {at: scan for at, scan in self._scans.items() if at > starts[0]}
        passed, budget = 0, _SCANNED_A_RUN
        for limit in starts[1 : count + 1]:
            if limit > self.dispatch.confirmed:  # its queues may still get messages below it
                break
            scan = self._scans.get(limit)
            if scan is None:
                scan = self._scans[limit] = self._scan()
            for left in (scan.own, scan.others) if with_others else (scan.own,):
                while left and budget > 0 and self._is_beyond(left[-1], limit):
                    left.pop()
                    budget -= 1
            if scan.own or (with_others and scan.others):
                break
            passed += 1
        return passed

    def _scan(self) -> _Scan:
        scan = _Scan([], [])
        for (topic, _), queue in self.dispatch.queues.table.items():
            time = self._times.get(topic)
            if time is not None and time.reserved_ms is not None:
                scan.own.append(queue)
            elif not self._is_journal(topic):
                scan.others.append(queue)
        return scan

    def _is_beyond(self, queue: ConsumeQueue, limit: int) -> bool:
        """Return whether all readable messages of a queue are at or after a physical offset."""
        if queue.deleted:
            return True
        try:
            return self.dispatch.queues.physical_offset_of(queue, queue.min_offset) >= limit
        except StoreReadError:
            return False
