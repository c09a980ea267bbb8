"""The transactions that have not ended, without their bodies. Does not use the store or a clock."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, replace

from aerobee_broker.delivery.transaction.half_messages import HalfMessage
from aerobee_broker.delivery.transaction.states import TRANSITIONS, Event, State
from aerobee_broker.store.messages import Appended

# Outdated entries that may stay in the heap, in addition to the number of valid ones.
_SLACK = 1_024


@dataclass(slots=True, eq=False)
class Transaction:
    """A half message, the place of its newest copy, and the state of its transaction."""

    half: HalfMessage
    queue_offset: int
    physical_offset: int
    size: int
    # Op records below this queue offset concern neither it nor a later half message.
    op_floor: int
    state: State = State.OPEN

    @property
    def name(self) -> int:
        return self.half.name

    @property
    def end_offset(self) -> int:
        """Return the physical offset after the record."""
        return self.physical_offset + self.size

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    def advance(self, event: Event) -> None:
        """Change the state. Raises KeyError if the state does not have this event."""
        self.state = TRANSITIONS[self.state][event]


class OpenTransactions:
    """The open transactions, by name: the queue offset of the half message."""

    def __init__(self) -> None:
        self.bytes = 0  # total of all records
        self._by_name: dict[int, Transaction] = {}
        self._by_topic: Counter[str] = Counter()
        self._order: list[tuple[int, int]] = []  # heap of (queue offset, name), some outdated
        # Name → number of checks that is not in an op record yet.
        self.unwritten_checks: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: int) -> Transaction | None:
        return self._by_name.get(name)

    def names(self) -> list[int]:
        """Return the names of the transactions in the state OPEN."""
        return [name for name, transaction in self._by_name.items() if transaction.is_open]

    def by_topic(self) -> dict[str, int]:
        """Return topic → number of half messages for it."""
        return {topic: count for topic, count in self._by_topic.items() if count}

    def add(self, half: HalfMessage, appended: Appended, op_floor: int) -> Transaction:
        """Add a transaction; replace one of the same name, whose half message was rolled back."""
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
        """Remove a transaction, but keep a newer one of the same name."""
        if self._by_name.get(transaction.name) is transaction:
            del self._by_name[transaction.name]
            self.bytes -= transaction.size
            self._by_topic[transaction.half.topic] -= 1
        if len(self._order) > 2 * len(self._by_name) + _SLACK:
            self._order = [(each.queue_offset, name) for name, each in self._by_name.items()]
            heapq.heapify(self._order)

    def count_check(self, transaction: Transaction) -> None:
        """Count a check with its producer."""
        half = transaction.half
        transaction.half = replace(half, checks=half.checks + 1)
        self.unwritten_checks[half.name] = half.checks + 1

    def checks_written(self) -> None:
        self.unwritten_checks = {}

    def copied_forward(self, transaction: Transaction, appended: Appended, op_floor: int) -> None:
        """Record the place of the newest copy, unless the transaction has ended."""
        if self._by_name.get(transaction.name) is transaction:
            self.bytes += appended.store_size - transaction.size
            transaction.queue_offset = appended.queue_offset
            transaction.physical_offset = appended.physical_offset
            transaction.size, transaction.op_floor = appended.store_size, op_floor
            heapq.heappush(self._order, (transaction.queue_offset, transaction.name))

    def first(self) -> Transaction | None:
        """Return the transaction whose half message is the first in the log."""
        order = self._order
        while order:
            queue_offset, name = order[0]
            transaction = self._by_name.get(name)
            if transaction is not None and transaction.queue_offset == queue_offset:
                return transaction
            heapq.heappop(order)
        return None

    def below(self, physical_offset: int, max_bytes: int) -> list[Transaction]:
        """Return some transactions in the state OPEN below a physical offset.

        Returns about `max_bytes` in total; the last one may exceed it.
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
