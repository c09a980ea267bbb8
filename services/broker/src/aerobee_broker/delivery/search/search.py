"""A search over the queues of a topic on this broker, as a sequence of short steps.

The messages come in the order in which they were stored, or the reverse. Without a key, each step
examines a slice of the queue that is furthest behind, and messages wait until no other queue can
contribute an earlier one. With a key, the index names the messages that may have it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heappop, heappush
from itertools import islice

from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.delivery.pull.offsets import QueueQueries
from aerobee_broker.delivery.search.matching import BodyUnreadable, Conditions
from aerobee_broker.delivery.search.pace import Pace
from aerobee_broker.delivery.search.queue_scan import SLICE_BYTES, SLICE_MESSAGES, QueueScan
from aerobee_broker.errors import InvalidParameter, MessageCorrupted
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.record import Record

DEFAULT_MESSAGES = 100
MAX_MESSAGES = 10_000
DEFAULT_BYTES = 64 * 1024 * 1024
# Matching messages of all queues that wait for their turn.
HELD_BYTES = 4 * 1024 * 1024
MIN_SLICE_BYTES = 16 * 1024
INDEXED_AT_ONCE = 64  # records that the index names are read one by one: 30 µs each
# Bodies that a step decompresses: about 3 ms. One body may have up to MAX_TEXT_BODY_BYTES.
STEP_BYTES = 1024 * 1024
FOLLOW_WAIT_S = 30.0
_NO_LIMIT = (1 << 63) - 1


class Stop(Enum):
    """The reason for the end of a search."""

    COMPLETE = "all messages are examined"
    MESSAGE_LIMIT = "the limit of messages is reached"
    BYTE_LIMIT = "the limit of bytes is reached"
    SCAN_LIMIT = "the limit of examined messages is reached"
    BROKER_STOPS = "the broker stops"


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Queue offsets from `begin` up to below `end`; None is the end of the queue."""

    begin: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a search. If `queues` is empty, all queues are searched.

    A limit of 0 is the default. If `follow` is True, the search waits for new messages at its end,
    and only limits above 0 end it.
    """

    topic: str
    conditions: Conditions
    queues: Mapping[int, QueueRange] = field(default_factory=dict)
    newest_first: bool = False
    max_messages: int = 0
    max_bytes: int = 0
    max_scanned: int = 0
    follow: bool = False

    def check(self) -> None:
        """Raise InvalidParameter if a value is out of range."""
        for name, value, most in (
            ("max_messages", self.max_messages, MAX_MESSAGES),
            ("max_bytes", self.max_bytes, _NO_LIMIT),
            ("max_scanned", self.max_scanned, _NO_LIMIT),
        ):
            if not 0 <= value <= most:
                raise InvalidParameter(f"invalid {name} {value}: use 0 to {most}")
        if self.follow and self.newest_first:
            raise InvalidParameter("follow needs the order of arrival: do not set newest_first")
        for queue_id, bounds in self.queues.items():
            if bounds.begin < 0 or (bounds.end is not None and bounds.end < bounds.begin):
                raise InvalidParameter(
                    f"invalid range {bounds.begin} to {bounds.end} of queue {queue_id}: "
                    "use offsets of 0 or more, the lower one first"
                )


@dataclass(frozen=True, slots=True)
class Position:
    """The offsets of a queue that are left to examine: from `begin` up to below `end`.

    `queue_end` is the end of the queue when the search began.
    """

    queue_id: int
    begin: int
    end: int
    queue_end: int


class Search:
    """One search. Iterate over `run` once; the counters are valid at any time."""

    def __init__(
        self,
        request: Request,
        *,
        store: MessageStore,
        queries: QueueQueries,
        access: ReadAccess,
        polls: LongPolls,
        pace: Pace,
    ) -> None:
        self.scanned = self.matched = self.unreadable = 0
        self.stop: Stop | None = None
        self._request = request
        self._store, self._queries, self._access = store, queries, access
        self._polls, self._pace = polls, pace
        self._conditions = request.conditions
        self._bytes = 0
        self._max_messages = request.max_messages or (
            _NO_LIMIT if request.follow else DEFAULT_MESSAGES
        )
        self._max_bytes = request.max_bytes or (_NO_LIMIT if request.follow else DEFAULT_BYTES)
        self._max_scanned = request.max_scanned or _NO_LIMIT
        self._scans: list[QueueScan] = []
        self._queue_ends: dict[int, int] = {}
        # Matching messages: (physical offset, negated if the newest are first; the message).
        self._held: list[tuple[int, Record]] = []
        self._unexamined = deque[Record]()  # the rest of the last slice
        self._step_bytes = 0  # of the bodies searched in this step
        self._by_index = False

    @property
    def remaining(self) -> int:
        """Return the number of messages to examine, or -1 if it is unknown."""
        if self._by_index:
            return -1
        return len(self._unexamined) + sum(scan.left for scan in self._scans)

    def positions(self) -> list[Position]:
        """Return where the search stopped in each queue. Empty if it used the index."""
        bounds = {scan.queue_id: [scan.low, scan.high] for scan in self._scans}
        held = (record for _, record in self._held)  # examined, but not returned
        for record in (*held, *self._unexamined):
            low_high = bounds[record.queue_id]
            if self._request.newest_first:
                low_high[1] = max(low_high[1], record.queue_offset + 1)
            else:
                low_high[0] = min(low_high[0], record.queue_offset)
        return [
            Position(queue_id, low, high, self._queue_ends[queue_id])
            for queue_id, (low, high) in bounds.items()
        ]

    async def run(self) -> AsyncGenerator[list[Record], None]:
        """Yield the matching messages of each step; the list may be empty.

        After the last step, `stop` is set. Raises InvalidParameter, TopicNotExist, NoPermission,
        MqError with the code FLOW_CONTROL or SUBSCRIPTION_PARSE_FAILED, and errors of the store.
        """
        request = self._request
        request.check()
        config = self._access.topic(request.topic, None)
        self._access.check_filter(self._conditions.filter)
        wanted = self._access.filter_in(config, self._conditions.filter)
        self._conditions = replace(self._conditions, filter=wanted)
        with self._pace.search():
            self._by_index = bool(
                self._conditions.key and self._store.is_indexed and not request.follow
            )
            steps = self._indexed_steps() if self._by_index else self._scan_steps()
            while True:
                found = await self._pace.next(steps)
                if found is None:
                    if self.stop or not request.follow:
                        break
                    if not await self._arrival():
                        self.stop = Stop.BROKER_STOPS
                        break
                    steps = self._merged_steps()
                else:
                    yield found
            self.stop = self.stop or Stop.COMPLETE

    # ---- by reading ----

    def _scan_steps(self) -> Iterator[list[Record]]:
        yield from self._open_steps()
        yield from self._merged_steps()

    def _open_steps(self) -> Iterator[list[Record]]:
        """Find the ranges to examine. The search by time needs a step for each queue."""
        request, conditions = self._request, self._conditions
        bounds = self._queries.bounds(request.topic, list(request.queues), with_timestamps=False)
        tags = conditions.filter.tags_codes
        slice_bytes = max(MIN_SLICE_BYTES, HELD_BYTES // max(1, len(bounds.queues)))
        for queue in bounds.queues:
            wanted = request.queues.get(queue.queue_id, QueueRange())
            low, high = max(queue.min_offset, wanted.begin), queue.max_offset
            self._queue_ends[queue.queue_id] = high
            if wanted.end is not None:
                high = min(high, wanted.end)
            if conditions.begin_ms > 0:
                low = max(low, self._by_time(queue.queue_id, conditions.begin_ms))
            if conditions.end_ms < _NO_LIMIT and not request.follow:
                high = min(high, self._by_time(queue.queue_id, conditions.end_ms + 1))
            self._scans.append(
                QueueScan(
                    self._store,
                    request.topic,
                    queue.queue_id,
                    low=min(low, high),
                    high=high,
                    newest_first=request.newest_first,
                    tags=tags,
                    slice_bytes=min(SLICE_BYTES, slice_bytes),
                )
            )
            yield []

    def _by_time(self, queue_id: int, time_ms: int) -> int:
        return self._store.search_offset(self._request.topic, queue_id, time_ms)

    def _merged_steps(self) -> Iterator[list[Record]]:
        sign = -1 if self._request.newest_first else 1
        while True:
            unfinished = [scan for scan in self._scans if scan.left]
            furthest = min(unfinished, key=lambda scan: sign * scan.frontier, default=None)
            limit = _NO_LIMIT if furthest is None else sign * furthest.frontier
            ready: list[Record] = []
            while self._held and self._held[0][0] <= limit and self._accept(self._held[0][1]):
                ready.append(heappop(self._held)[1])
            if self.stop is None and (self._held or furthest is not None):
                if self.matched >= self._max_messages:
                    self.stop = Stop.MESSAGE_LIMIT
                elif furthest is not None and self.scanned >= self._max_scanned:
                    self.stop = Stop.SCAN_LIMIT
            if self.stop is not None or furthest is None:
                yield ready
                return
            for _ in self._examine(furthest, sign):
                yield ready
                ready = []
            yield ready

    def _examine(self, scan: QueueScan, sign: int) -> Iterator[None]:
        """Examine a slice. Yields where a step ends, because it decompressed enough."""
        most = min(SLICE_MESSAGES, self._max_scanned - self.scanned)
        if self._conditions.everything:
            most = min(most, self._max_messages - self.matched)
        part = scan.next_slice(most)
        self.scanned += part.scanned
        self.unreadable += part.unreadable
        self._unexamined = deque(part.records)
        while self._unexamined:
            record = self._unexamined.popleft()
            if self._matches(record):
                heappush(self._held, (sign * record.physical_offset, record))
            if self._is_step_full():
                yield

    def _matches(self, record: Record) -> bool:
        try:
            return self._conditions.matches(record, self._count_text)
        except BodyUnreadable:
            self.unreadable += 1
            return False

    def _count_text(self, size: int) -> None:
        self._step_bytes += size

    def _is_step_full(self) -> bool:
        """Return whether the bodies since the last True took a few milliseconds."""
        if self._step_bytes < STEP_BYTES:
            return False
        self._step_bytes = 0
        return True

    def _accept(self, record: Record) -> bool:
        """Count a message if the limits permit it. Otherwise, set `stop`."""
        if self.matched >= self._max_messages:
            self.stop = Stop.MESSAGE_LIMIT
        elif self.matched and self._bytes + record.store_size > self._max_bytes:
            self.stop = Stop.BYTE_LIMIT
        else:
            self.matched += 1
            self._bytes += record.store_size
        return self.stop is None

    async def _arrival(self) -> bool:
        """Wait for new messages in any of the queues. Return False if the broker stops."""
        topic, tags = self._request.topic, self._conditions.filter.tags_codes
        while not self._polls.closed:
            for scan in self._scans:
                scan.extend()
            if self.remaining:
                return True
            parked = [
                asyncio.ensure_future(
                    self._polls.park_pull(topic, scan.queue_id, scan.high, tags, FOLLOW_WAIT_S)
                )
                for scan in self._scans
            ]
            try:
                await asyncio.wait(parked, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in parked:
                    each.cancel()
                await asyncio.gather(*parked, return_exceptions=True)
        return False

    # ---- by the index ----

    def _indexed_steps(self) -> Iterator[list[Record]]:
        request, conditions = self._request, self._conditions
        named = self._store.indexed(
            request.topic, conditions.key, conditions.begin_ms, conditions.end_ms
        )
        places: Sequence[int] | Iterator[int] = named
        if not request.newest_first:  # the index names the newest first
            places = []
            while part := list(islice(named, INDEXED_AT_ONCE)):
                places += part
                yield []
            places.reverse()
        yield from self._read_indexed(iter(places))

    def _read_indexed(self, places: Iterator[int]) -> Iterator[list[Record]]:
        damaged: list[MessageCorrupted] = []
        while part := list(islice(places, INDEXED_AT_ONCE)):
            ready: list[Record] = []
            for physical_offset in part:
                if self.scanned >= self._max_scanned:
                    self.stop = Stop.SCAN_LIMIT
                    break
                self.scanned += 1
                record = self._store.indexed_record(physical_offset, damaged)
                if record is not None and self._is_wanted(record) and self._matches(record):
                    if not self._accept(record):
                        break
                    ready.append(record)
                if self._is_step_full():
                    yield ready
                    ready = []
            self.unreadable += len(damaged)
            damaged.clear()
            yield ready
            if self.stop is not None:
                return

    def _is_wanted(self, record: Record) -> bool:
        """Return whether the message is in the topic, and in a range of the request."""
        if record.topic != self._request.topic:
            return False
        if not self._request.queues:
            return True
        bounds = self._request.queues.get(record.queue_id)
        if bounds is None or record.queue_offset < bounds.begin:
            return False
        return bounds.end is None or record.queue_offset < bounds.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches:
    """Runs the searches of a broker."""

    store: MessageStore
    queries: QueueQueries
    access: ReadAccess
    polls: LongPolls
    pace: Pace

    def search(self, request: Request) -> Search:
        return Search(
            request,
            store=self.store,
            queries=self.queries,
            access=self.access,
            polls=self.polls,
            pace=self.pace,
        )
