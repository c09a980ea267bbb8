"""Which messages of a queue a group has on lease, which wait, which are settled. Memory only: no
clock, no log, no loop.

A message is open from the moment that the cursor passes it until it is settled; what lies below
the cursor and is not open is settled. So memory grows with what is under way, not with what was
acknowledged, and the group's committed offset is the lowest open message, or the cursor.

FIFO: the open messages of a message group stand in a row. None of them is handed out while one is
on lease. Once none is, the acknowledged front of the row is settled, and the rest comes again,
acknowledged or not: the facts of RocketMQ's orderly pop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

# A queue gives out nothing new while so many of its messages are open; what comes again still does.
MAX_OPEN = 20_000
# Of these, messages that were only passed because others of their message group are on lease.
MAX_WAITING = 4_096
# Settled messages whose offsets may stay in the heap of open ones, besides as many as are open.
_SLACK = 1_024


@dataclass(slots=True, eq=False)
class Held:
    """An open message. `attempt` 0: never handed out. Deadlines count while it is `leased`."""

    offset: int
    message_group: str | None = None
    attempt: int = 0
    lease_id: int = 0
    leased: bool = False
    # The present delivery is not to count once it ends.
    uncounted: bool = False
    # Acknowledged, and kept because an earlier one of its message group is not.
    acked: bool = False
    deadline_ms: int = 0  # of the clock that only goes forward
    expires_ms: int = 0  # the same, since the epoch
    since_ms: int = 0  # when the present duration began, since the epoch


class Lease(NamedTuple):
    """What the messages of one pop have in common; the fields as in Held."""

    lease_id: int
    since_ms: int
    expires_ms: int
    deadline_ms: int


@dataclass(slots=True)
class Row:
    """The open messages of one message group, in order. `leased`: those on lease and not
    acknowledged."""

    offsets: deque[int] = field(default_factory=deque)
    leased: int = 0


class QueueLeases:
    """One message queue of one group. `cursor`: the first queue offset that was never looked at.

    `logged`: as far as the log knows the cursor; `passed`: what was opened from there on.
    `resets`: how many times everything became void; what was under way then is not to come back.
    """

    def __init__(self, queue_id: int, cursor: int, *, fifo: bool = False) -> None:
        self.queue_id = queue_id
        self.cursor = cursor
        self.logged = cursor
        self.passed: list[int] = []
        self.fifo = fifo
        self.resets = 0
        self.open: dict[int, Held] = {}
        self.rows: dict[str, Row] = {}
        self._lowest: list[int] = []
        self._ready: list[int] = []
        self._waiting = 0

    @property
    def committed(self) -> int:
        """Everything below is settled."""
        lowest = self._lowest
        while lowest and lowest[0] not in self.open:
            heappop(lowest)
        return lowest[0] if lowest else self.cursor

    @property
    def full(self) -> bool:
        return len(self.open) >= MAX_OPEN or self._waiting >= MAX_WAITING

    @property
    def leased(self) -> int:
        return sum(held.leased for held in self.open.values())

    @property
    def blocked(self) -> int:
        """Message groups with messages that wait for others of them to be settled."""
        return sum(bool(row.leased) and len(row.offsets) > row.leased for row in self.rows.values())

    def is_free(self, message_group: str) -> bool:
        """Whether a new message of it need not wait for an earlier one."""
        return message_group not in self.rows

    def on_lease(self, offset: int, lease_id: int, now_ms: int) -> Held | None:
        """The message, unless this lease on it is over or there is none. `now_ms`: of the clock
        that only goes forward."""
        held = self.open.get(offset)
        if held is None or held.lease_id != lease_id or not held.leased:
            return None
        return held if held.deadline_ms > now_ms else None

    def is_acknowledged(self, offset: int, lease_id: int) -> bool:
        """Whether the message is settled, or this lease on it was acknowledged."""
        held = self.open.get(offset)
        if held is None:
            return 0 <= offset < self.cursor
        return held.acked and held.lease_id == lease_id

    # ---- opening and leasing ----

    def pass_by(self, offset: int, message_group: str | None) -> Held:
        """Opens a message that the cursor comes to."""
        held = Held(offset, message_group)
        self._insert(held)
        self.passed.append(offset)
        if message_group is not None:
            self.rows.setdefault(message_group, Row()).offsets.append(offset)
            self._waiting += 1
        return held

    def lease_new(self, count: int, lease: Lease) -> list[Held]:
        """Opens and leases as many messages at the cursor, none of a message group: in less time
        than each by itself."""
        offsets = range(self.cursor, self.cursor + count)
        lease_id, since_ms, expires_ms, deadline_ms = lease
        times = deadline_ms, expires_ms, since_ms
        new = [Held(offset, None, 1, lease_id, True, False, False, *times) for offset in offsets]
        self.open.update(zip(offsets, new, strict=True))
        for offset in offsets:
            heappush(self._lowest, offset)
        self.passed += offsets
        self.cursor += count
        self._drop_settled()
        return new

    def next_ready(self) -> list[Held]:
        """What may be handed out again next: one message, or the row of one message group. It is
        taken out of line: lease it, or `put_back`."""
        while self._ready:
            held = self.open.get(heappop(self._ready))
            if held is None or held.leased:
                continue
            if held.message_group is None:
                return [held]
            row = self.rows[held.message_group]
            if not row.leased and row.offsets[0] == held.offset:
                return [self.open[offset] for offset in row.offsets]
        return []

    def put_back(self, held: Held) -> None:
        heappush(self._ready, held.offset)

    def lease(self, held: Held, lease: Lease) -> None:
        """Counts a delivery."""
        if held.message_group is not None:
            if not held.leased:
                self.rows[held.message_group].leased += 1
            if not held.attempt:
                self._waiting -= 1
        held.leased, held.acked, held.uncounted = True, False, False
        held.attempt += 1
        held.lease_id, held.since_ms, held.expires_ms, held.deadline_ms = lease

    # ---- ends of a lease ----

    def acknowledge_all(
        self, offsets: Sequence[int], lease_id: int, now_ms: int
    ) -> tuple[list[Held], list[Held], list[int]]:
        """Returns the messages whose lease ends by it, those that are settled by it, and the
        places in `offsets` of what is not on this lease. `now_ms` as in `on_lease`."""
        ended: list[Held] = []
        settled: list[Held] = []
        others: list[int] = []
        for place, offset in enumerate(offsets):
            held = self.on_lease(offset, lease_id, now_ms)
            if held is None:
                others.append(place)
                continue
            ended.append(held)
            if held.message_group is None:
                self._settle(held)
                settled.append(held)
            else:
                held.acked = True
                settled += self._end_lease(held)
        return ended, settled, others

    def expire(self, held: Held) -> None:
        """The message becomes visible again, in a row once no other of the row is on lease."""
        if held.uncounted:
            held.attempt, held.uncounted = held.attempt - 1, False
            self._waiting += held.message_group is not None and not held.attempt
        if held.message_group is None:
            held.leased = False
            heappush(self._ready, held.offset)
        else:
            self._end_lease(held)

    def drop(self, held: Held) -> list[Held]:
        """Settles a message wherever it stands: it became a dead letter, or is no longer stored.
        Returns what is settled by it, itself first."""
        self._settle(held)
        if held.message_group is None:
            return [held]
        row = self.rows[held.message_group]
        row.offsets.remove(held.offset)
        self._waiting -= not held.attempt
        row.leased -= held.leased
        return [held, *self._tidy(held.message_group, row)]

    def _end_lease(self, held: Held) -> list[Held]:
        group = held.message_group
        assert group is not None
        row = self.rows[group]
        if held.leased:
            held.leased = False
            row.leased -= 1
        return self._tidy(group, row)

    def _tidy(self, message_group: str, row: Row) -> list[Held]:
        settled = []
        while row.offsets and self.open[row.offsets[0]].acked:
            held = self.open[row.offsets.popleft()]
            self._settle(held)
            settled.append(held)
        if not row.offsets:
            del self.rows[message_group]
        elif not row.leased:
            for offset in row.offsets:
                self.open[offset].acked = False
            heappush(self._ready, row.offsets[0])
        return settled

    def _settle(self, held: Held) -> None:
        del self.open[held.offset]

    def _insert(self, held: Held) -> None:
        self.open[held.offset] = held
        heappush(self._lowest, held.offset)
        self._drop_settled()

    def _drop_settled(self) -> None:
        """Behind a message that stays open the others do not come to the front of the heap."""
        if len(self._lowest) > 2 * len(self.open) + _SLACK:
            self._lowest = sorted(self.open)

    # ---- as a whole ----

    def reset(self, cursor: int) -> None:
        self.resets += 1
        self.open.clear()
        self.cursor = self.logged = cursor
        self.passed.clear()
        self.rebuild()

    def rebuild(self) -> None:
        """Rows and heaps anew, from the open messages."""
        self.rows, self._waiting = {}, 0
        self._lowest = sorted(self.open)
        for offset in self._lowest:
            held = self.open[offset]
            if held.message_group is not None:
                row = self.rows.setdefault(held.message_group, Row())
                row.offsets.append(offset)
                row.leased += held.leased
                self._waiting += not held.attempt
        for row in self.rows.values():
            self._drop_old_acks(row)
        self._ready = [
            held.offset
            for held in self.open.values()
            if not held.leased
            and (held.message_group is None or not self.rows[held.message_group].leased)
        ]
        heapify(self._ready)

    def _drop_old_acks(self, row: Row) -> None:
        """The log tells no end of a lease by time, and so not that acknowledgements of that lease
        ceased to count. But the row was leased again after it, or nothing of it is on lease."""
        members = [self.open[offset] for offset in row.offsets]
        latest = max((held.lease_id for held in members if held.leased), default=None)
        for held in members:
            held.acked = held.acked and held.lease_id == latest

    def regroup(self, message_group_of: Callable[[int], str] | None) -> None:
        """By message group, or message by message when there is no such function."""
        for held in self.open.values():
            held.message_group = message_group_of(held.offset) if message_group_of else None
            held.acked = held.acked and message_group_of is not None
        self.rebuild()

    def __iter__(self) -> Iterator[Held]:
        return iter(self.open.values())
