"""The transactions that have not ended: their states, and the times of their check-backs.

Message bodies are not in memory. A transaction starts when its half message is appended.

    OPEN ──COMMIT───▶ COMMITTING ───FLUSHED─▶ COMMITTED
    OPEN ──ROLL_BACK▶ ROLLING_BACK ─FLUSHED─▶ ROLLED_BACK
    OPEN ──GIVE_UP──▶ GIVING_UP ────FLUSHED─▶ GIVEN_UP
         ◀───LOST──── each of the three

    OPEN ──FIND_TORN▶ TORN ──MEND─▶ MENDING ─FLUSHED─▶ COMMITTED
                           ◀─LOST──

    OPEN, COMMITTING, ROLLING_BACK, GIVING_UP ──HALF_LOST─▶ NOT_STORED

A transaction ends with an op record in the log. A commit appends the message and the op record at
once. The event LOST means that the append was rolled back. HALF_LOST means that the append of the
half message was rolled back. FIND_TORN means that a start has found the committed message without
its op record, because a crash has left their append incomplete.

A check-back does not change the state. The producer is asked about an OPEN transaction, which stays
OPEN (`HalfMessage.checks` counts the checks).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto

from aerobee_broker.delivery.transaction.half_messages import HalfMessage
from aerobee_broker.store.messages import Appended
from aerobee_chassis.clock import Clock


class State(Enum):
    OPEN = auto()
    # The op record is in the log, but not durable yet.
    COMMITTING = auto()
    ROLLING_BACK = auto()
    GIVING_UP = auto()
    # Committed before a crash. The op record is missing, or it is not durable yet.
    TORN = auto()
    MENDING = auto()
    # Final states. The transaction is removed from memory.
    COMMITTED = auto()
    ROLLED_BACK = auto()
    GIVEN_UP = auto()
    NOT_STORED = auto()


class Event(Enum):
    COMMIT = auto()
    ROLL_BACK = auto()
    GIVE_UP = auto()
    FIND_TORN = auto()
    MEND = auto()
    FLUSHED = auto()
    LOST = auto()
    HALF_LOST = auto()


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.OPEN: {
        Event.COMMIT: State.COMMITTING,
        Event.ROLL_BACK: State.ROLLING_BACK,
        Event.GIVE_UP: State.GIVING_UP,
        Event.FIND_TORN: State.TORN,
        Event.HALF_LOST: State.NOT_STORED,
    },
    State.COMMITTING: {
        Event.FLUSHED: State.COMMITTED,
        Event.LOST: State.OPEN,
        Event.HALF_LOST: State.NOT_STORED,
    },
    State.ROLLING_BACK: {
        Event.FLUSHED: State.ROLLED_BACK,
        Event.LOST: State.OPEN,
        Event.HALF_LOST: State.NOT_STORED,
    },
    State.GIVING_UP: {
        Event.FLUSHED: State.GIVEN_UP,
        Event.LOST: State.OPEN,
        Event.HALF_LOST: State.NOT_STORED,
    },
    State.TORN: {Event.MEND: State.MENDING},
    State.MENDING: {Event.FLUSHED: State.COMMITTED, Event.LOST: State.TORN},
    State.COMMITTED: {},
    State.ROLLED_BACK: {},
    State.GIVEN_UP: {},
    # LOST is possible if both appends were rolled back, and HALF_LOST came first.
    State.NOT_STORED: {Event.LOST: State.NOT_STORED},
}


# The heap may contain this number of outdated entries more than valid ones.
_SLACK = 1_024


@dataclass(slots=True, eq=False)
class Transaction:
    """A half message, the position of its newest copy in the log, and its transaction's state."""

    half: HalfMessage
    queue_offset: int
    physical_offset: int
    size: int
    # Op records below this queue offset do not concern this half message or later ones.
    op_floor: int
    state: State = State.OPEN

    @property
    def name(self) -> int:
        return self.half.name

    @property
    def end_offset(self) -> int:
        """Return the physical offset of the end of the half message's record."""
        return self.physical_offset + self.size

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    def advance(self, event: Event) -> None:
        """Change the state after an event. Raises KeyError if the state does not allow it."""
        self.state = TRANSITIONS[self.state][event]


class OpenTransactions:
    """The transactions that have not ended, by the name of their half message."""

    def __init__(self) -> None:
        self.bytes = 0  # total size of the records of all half messages
        self._by_name: dict[int, Transaction] = {}
        self._by_topic: Counter[str] = Counter()
        self._order: list[tuple[int, int]] = []  # heap of (queue offset, name), some outdated
        # Name → number of checks, for numbers that are not in an op record yet.
        self.unwritten_checks: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: int) -> Transaction | None:
        return self._by_name.get(name)

    def names(self) -> list[int]:
        """Return the names of the transactions in the state OPEN."""
        return [name for name, transaction in self._by_name.items() if transaction.is_open]

    def by_topic(self) -> dict[str, int]:
        """Return the number of half messages for each destination topic."""
        return {topic: count for topic, count in self._by_topic.items() if count}

    def add(self, half: HalfMessage, appended: Appended, op_floor: int) -> Transaction:
        """Add a transaction.

        Replaces a transaction of the same name, whose half message was rolled back.
        """
        earlier = self._by_name.get(half.name)
        if earlier is not None:
            self.remove(earlier)
        transaction = Transaction(
            half, appended.queue_offset, appended.physical_offset, appended.store_size, op_floor
        )
        self._by_name[half.name] = transaction
        self.bytes += transaction.size
        self._by_topic[half.topic] += 1
        heapq.heappush(self._order, (transaction.queue_offset, half.name))
        return transaction

    def remove(self, transaction: Transaction) -> None:
        """Remove a transaction, but keep a newer transaction with the same name."""
        if self._by_name.get(transaction.name) is transaction:
            del self._by_name[transaction.name]
            self.bytes -= transaction.size
            self._by_topic[transaction.half.topic] -= 1
        if len(self._order) > 2 * len(self._by_name) + _SLACK:
            self._order = [(each.queue_offset, name) for name, each in self._by_name.items()]
            heapq.heapify(self._order)

    def count_check(self, transaction: Transaction) -> None:
        """Count a check that was sent to a producer of a transaction."""
        half = transaction.half
        transaction.half = replace(half, checks=half.checks + 1)
        self.unwritten_checks[half.name] = half.checks + 1

    def checks_written(self) -> None:
        self.unwritten_checks = {}

    def copied_forward(self, transaction: Transaction, appended: Appended, op_floor: int) -> None:
        """Record the position of a new copy of a half message, unless its transaction has ended."""
        if self._by_name.get(transaction.name) is transaction:
            self.bytes += appended.store_size - transaction.size
            transaction.queue_offset = appended.queue_offset
            transaction.physical_offset = appended.physical_offset
            transaction.size, transaction.op_floor = appended.store_size, op_floor
            heapq.heappush(self._order, (transaction.queue_offset, transaction.name))

    def first(self) -> Transaction | None:
        """Return the transaction whose half message is the first in the log.

        Returns None if there are no transactions.
        """
        order = self._order
        while order:
            queue_offset, name = order[0]
            transaction = self._by_name.get(name)
            if transaction is not None and transaction.queue_offset == queue_offset:
                return transaction
            heapq.heappop(order)
        return None

    def below(self, physical_offset: int, max_bytes: int) -> list[Transaction]:
        """Return transactions in the state OPEN whose half message is below a physical offset.

        The total size of their half messages is about `max_bytes`. The last one may exceed it.
        """
        first = self.first()
        if first is None or first.physical_offset >= physical_offset:
            return []
        size, found = 0, []
        for transaction in self._by_name.values():
            if transaction.physical_offset < physical_offset and transaction.is_open:
                found.append(transaction)
                size += transaction.size
                if size >= max_bytes:
                    break
        return found


SLACK = 4_096  # the schedule may have this number of entries of ended transactions


class CheckSchedule:
    """The times at which the next checks of open transactions are due.

    The first check of a half message is due `timeout_ms` (transactionTimeOut) after it was stored,
    or after its own immunity time. Times are on the monotonic clock. A half message is identified
    by its name.
    """

    def __init__(self, clock: Clock, *, timeout_ms: int) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._due: list[tuple[int, int]] = []  # heap of (time, name), some outdated
        self._times: dict[int, tuple[int, str]] = {}  # name → the valid time, producer group
        self._without_producer: dict[str, set[int]] = {}  # producer group → names

    def use(self, timeout_ms: int) -> None:
        """Use another time for the first checks of transactions that open from now on."""
        self._timeout_ms = timeout_ms

    def opened(self, half: HalfMessage) -> None:
        """Schedule the first check of an open transaction."""
        first_ms = self._timeout_ms if half.immunity_ms is None else half.immunity_ms
        self.put(half, first_ms - self.age_ms(half))

    def put(self, half: HalfMessage, in_ms: int) -> None:
        """Set the time of a half message's next check, which replaces the previous time.

        If `in_ms` is negative, the check is due now.
        """
        self._put(half.name, half.producer_group, in_ms)

    def put_without_producer(self, half: HalfMessage, in_ms: int) -> None:
        """Schedule a check that is due earlier if a producer of the group connects."""
        self._without_producer.setdefault(half.producer_group, set()).add(half.name)
        self.put(half, in_ms)

    def age_ms(self, half: HalfMessage) -> int:
        """Return the milliseconds since a half message was stored.

        The result is at least 0, even if the clock was set back.
        """
        return max(0, self._clock.now_ms() - half.stored_ms)

    def _put(self, name: int, group: str, in_ms: int) -> None:
        at = self._clock.monotonic_ms() + max(0, in_ms)
        self._times[name] = at, group
        heapq.heappush(self._due, (at, name))

    @property
    def groups_without_producer(self) -> frozenset[str]:
        return frozenset(self._without_producer)

    def producers_connected(self, groups: Iterable[str]) -> None:
        for group in groups:
            for name in self._without_producer.pop(group, ()):
                self._put(name, group, 0)

    def has_due(self, now_ms: int) -> bool:
        return bool(self._due) and self._due[0][0] <= now_ms

    def due_in_ms(self) -> float | None:
        """Return the milliseconds until the next check, or None if there is none.

        The transaction of that check may have ended already.
        """
        return self._due[0][0] - self._clock.monotonic_ms() if self._due else None

    def take_due(self, now_ms: int, limit: int) -> list[int]:
        """Remove checks that are due from the schedule, and return the names of the half messages.

        Processes up to `limit` entries of the schedule, which may be outdated.
        """
        names = []
        for _ in range(limit):
            if not self.has_due(now_ms):
                break
            at, name = heapq.heappop(self._due)
            known, group = self._times.get(name, (0, ""))
            if known == at:
                del self._times[name]
                if group in self._without_producer:
                    self._without_producer[group].discard(name)
                names.append(name)
        return names

    # ---- memory ----

    def is_crowded(self, open_count: int) -> bool:
        """Return whether most entries belong to ended transactions, so that `keep_only` is useful.

        Without it, such an entry stays until its time, which may be days ahead.
        """
        return len(self._due) > 2 * open_count + SLACK

    def keep_only(self, open_names: Iterable[int]) -> None:
        """Remove the checks of all half messages except the given ones, which are open."""
        kept = self._times.keys() & set(open_names)
        self._times = {name: self._times[name] for name in kept}
        self._due = [(at, name) for name, (at, _) in self._times.items()]
        heapq.heapify(self._due)
        waiting = {group: names & kept for group, names in self._without_producer.items()}
        self._without_producer = {group: names for group, names in waiting.items() if names}

    @property
    def groups(self) -> set[str]:
        """Return the producer groups of the scheduled transactions."""
        return {group for _, group in self._times.values()}
