"""The messages of one queue in flight for a consumer group: their leases, states and order.

This module only keeps state in memory. `TRANSITIONS` lists all changes of a message's state.

The cursor is the first queue offset that no pop has scanned. A message is in flight from the moment
that the cursor passes it until it is settled. A message below the cursor that is not in flight is
settled. Memory therefore grows with the number of messages in flight. The committed offset of the
group is the lowest offset in flight, or the cursor if no message is in flight.

If the group consumes in order, the messages of a message group that are in flight form a queue.
While one of them is on lease, a later pop leases no other. When no message is on lease any more,
the acknowledged messages at the front of the queue are settled. The other messages are redelivered,
even acknowledged ones, as in RocketMQ's orderly pop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from aerobee_broker.delivery.retry.policy import Failure

# A lease id is at least the time in milliseconds times this number. Lease ids therefore increase
# even if the journal is lost.
LEASE_IDS_PER_MS = 1_024


class State(Enum):
    """The state of a message, by the event that it waits for."""

    VISIBLE = 0  # waits for its next delivery
    INVISIBLE = 1  # on lease; waits for an acknowledgement or the end of its invisible duration
    ACKED = 2  # waits until the earlier messages of its message group are settled
    SETTLED = 3  # acknowledged, dead-lettered or not stored any more; not in flight


class Event(Enum):
    LEASE = "leased to a consumer: counts a delivery attempt"
    ACK = "acknowledged"
    ACK_BEHIND = "acknowledged, while an earlier message of its message group is not settled"
    FRONT_SETTLED = "every earlier message of its message group is settled"
    EXPIRE = "its invisible duration has passed; an uncounted attempt is subtracted again"
    GROUP_EXPIRED = "no message of its group is leased, and an earlier one is not settled"
    UNGROUPED = "its consumer group no longer consumes by message group"
    DROP = "dead-lettered, or no longer stored"
    RESET = "its consumer group was reset, or group or topic deleted"
    # Rollbacks, if the log did not accept the record:
    LEASE_ROLLED_BACK = "as before the lease"
    ACK_ROLLED_BACK = "leased again, as before its acknowledgement or dead letter"
    FRONT_ROLLED_BACK = "as before the earlier messages of its message group were settled"


VISIBLE, INVISIBLE, ACKED, SETTLED = State

# State → event → next state. Pairs of state and event that are missing here do not occur.
TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    VISIBLE: {
        Event.LEASE: INVISIBLE,
        Event.DROP: SETTLED,
        Event.RESET: SETTLED,
    },
    INVISIBLE: {
        Event.ACK: SETTLED,
        Event.ACK_BEHIND: ACKED,
        Event.EXPIRE: VISIBLE,
        Event.DROP: SETTLED,
        Event.RESET: SETTLED,
        Event.LEASE_ROLLED_BACK: VISIBLE,
        Event.FRONT_ROLLED_BACK: INVISIBLE,  # its own acknowledgement was rolled back before
    },
    ACKED: {
        Event.FRONT_SETTLED: SETTLED,
        Event.GROUP_EXPIRED: VISIBLE,
        Event.UNGROUPED: VISIBLE,
        Event.RESET: SETTLED,
        Event.ACK_ROLLED_BACK: INVISIBLE,
    },
    SETTLED: {
        Event.ACK_ROLLED_BACK: INVISIBLE,
        Event.FRONT_ROLLED_BACK: ACKED,
    },
}


class Invisibility(NamedTuple):
    """The beginning and the end of a message's current invisible duration."""

    deadline_ms: int  # the end, as monotonic time
    expires_ms: int  # the end, since the epoch
    pop_time_ms: int  # the beginning, since the epoch
    uncounted: bool  # the next delivery has the same attempt number as this one


@dataclass(slots=True, eq=False)
class InFlightMessage:
    """A message in flight.

    `attempt` is the number of the last delivery attempt, or 0 if the message was not delivered yet.
    The times are valid only while the state is INVISIBLE (see Invisibility).
    """

    offset: int
    message_group: str | None = None
    attempt: int = 0
    lease_id: int = 0
    state: State = VISIBLE
    deadline_ms: int = 0
    expires_ms: int = 0
    pop_time_ms: int = 0
    uncounted: bool = False
    # The client that got the last lease. Empty if it is unknown, or if an older broker granted the
    # lease.
    client_id: str = ""
    # Why this client failed to consume it: an empty failure if it only said that it did. None if it
    # did not say so.
    rejection: Failure | None = None

    @property
    def is_leased(self) -> bool:
        """Return whether the message is on lease."""
        return self.state is INVISIBLE

    @property
    def has_failed(self) -> bool:
        """Return whether the message was not settled within its first lease.

        Returns True if the message was delivered again or is visible again after a delivery. Also
        returns True if the invisible duration of its first lease was changed.
        """
        if self.attempt != 1 or self.state is not INVISIBLE:
            return self.attempt > 0
        return self.pop_time_ms > self.lease_id // LEASE_IDS_PER_MS

    @property
    def invisibility(self) -> Invisibility:
        return Invisibility(self.deadline_ms, self.expires_ms, self.pop_time_ms, self.uncounted)

    @invisibility.setter
    def invisibility(self, new: Invisibility) -> None:
        self.deadline_ms, self.expires_ms, self.pop_time_ms, self.uncounted = new


class Lease(NamedTuple):
    """The lease that all messages of one pop share.

    The fields have the same meaning as in InFlightMessage. `client_id` is the client that popped,
    or empty if it is unknown.
    """

    lease_id: int
    deadline_ms: int
    expires_ms: int
    pop_time_ms: int
    client_id: str = ""


# A queue with this number of messages in flight leases no new ones; redeliveries continue.
MAX_IN_FLIGHT = 20_000
# The same limit for messages that wait because earlier ones of their message group are on lease.
MAX_WAITING = 4_096
# The heap may contain this number of settled offsets more than offsets in flight.
_SLACK = 1_024


class Acknowledged(NamedTuple):
    """The effect of an acknowledgement.

    `ended` contains the messages whose lease it ended, and `settled` the messages that it settled.
    `invalid` contains the indices of the offsets that are not on the given lease.
    """

    ended: list[InFlightMessage]
    settled: list[InFlightMessage]
    invalid: list[int]


class JournalMark(NamedTuple):
    """The progress of the lease journal in a queue.

    `cursor` is the cursor in the journal. `opened` has the offsets of the messages that were put in
    flight and are not in the journal yet.
    """

    cursor: int
    opened: list[int]


@dataclass(slots=True)
class MessageGroupQueue:
    """The messages of one message group in flight.

    Attributes:
        offsets: Their queue offsets, in order.
        leased: The number of messages on lease.
        since_ms: The time of the first delivery of the first message, since the epoch. 0 if it was
            not delivered since the broker started.
        client_id: The client that got the last lease; empty if unknown.
    """

    offsets: deque[int] = field(default_factory=deque)
    leased: int = 0
    since_ms: int = 0
    client_id: str = ""


class InFlightQueue:
    """The messages of one message queue in flight for one consumer group.

    `cursor` is the first queue offset that no pop has scanned. `journalled_cursor` is the cursor in
    the journal, and `opened_since_journal` has the messages put in flight since it was written.
    `resets` is the number of resets. A change from before the last reset is not rolled back.
    """

    def __init__(
        self, consumer_group: str, topic: str, queue_id: int, cursor: int = 0, *, fifo: bool = False
    ) -> None:
        self.consumer_group = consumer_group
        self.topic = topic
        self.queue_id = queue_id
        self.cursor = cursor
        self.journalled_cursor = cursor
        self.opened_since_journal: list[int] = []
        self.fifo = fifo
        self.resets = 0
        self.in_flight: dict[int, InFlightMessage] = {}
        self.message_groups: dict[str, MessageGroupQueue] = {}
        self._lowest: list[int] = []  # heap of the offsets in flight, and of some settled ones
        self._visible: list[int] = []  # heap of offsets that may be redelivered, or are settled
        self._waiting = 0

    def __iter__(self) -> Iterator[InFlightMessage]:
        return iter(self.in_flight.values())

    @property
    def key(self) -> tuple[str, str, int]:
        return self.consumer_group, self.topic, self.queue_id

    @property
    def committed_offset(self) -> int:
        """Return the offset below which all messages are settled."""
        lowest = self._lowest
        while lowest and lowest[0] not in self.in_flight:
            heappop(lowest)
        return lowest[0] if lowest else self.cursor

    @property
    def is_full(self) -> bool:
        return len(self.in_flight) >= MAX_IN_FLIGHT or self._waiting >= MAX_WAITING

    def was_full(self, settled: int) -> bool:
        """Return whether the queue was full before `settled` messages were settled."""
        return len(self.in_flight) + settled >= MAX_IN_FLIGHT

    @property
    def leased_count(self) -> int:
        return sum(message.is_leased for message in self)

    @property
    def blocked_group_count(self) -> int:
        """Return the number of message groups with messages that wait for a leased one."""
        groups = self.message_groups.values()
        return sum(bool(group.leased) and len(group.offsets) > group.leased for group in groups)

    def blocked_groups(self) -> Iterator[tuple[str, MessageGroupQueue, InFlightMessage]]:
        """Yield the message groups in which messages wait for a failed message.

        Each group is given as its name, its messages and its first message, which has failed.
        """
        for name, group in self.message_groups.items():
            first = self.in_flight[group.offsets[0]]
            if len(group.offsets) > 1 and first.has_failed:
                yield name, group, first

    def is_waited_for(self, message: InFlightMessage) -> bool:
        """Return whether a message was delivered and is the first of its message group.

        The later messages of the message group wait until it is settled.
        """
        group = self.message_groups.get(message.message_group or "")
        return bool(message.attempt and group and group.offsets[0] == message.offset)

    def on_lease(self, offset: int, lease_id: int, now_ms: int) -> InFlightMessage | None:
        """Return the message at an offset if it is on the given lease, or else None.

        `now_ms` is the current monotonic time. After the deadline of the lease, returns None.
        """
        message = self.in_flight.get(offset)
        if message is None or message.lease_id != lease_id or message.state is not INVISIBLE:
            return None
        return message if message.deadline_ms > now_ms else None

    def is_acknowledged(self, offset: int, lease_id: int) -> bool:
        """Return whether the message is settled, or was acknowledged with the given lease."""
        message = self.in_flight.get(offset)
        if message is None:
            return 0 <= offset < self.cursor
        return message.state is ACKED and message.lease_id == lease_id

    # ---- opening and leasing ----

    def open_message(self, offset: int, message_group: str | None) -> InFlightMessage:
        """Put a message in flight, because the cursor passes it."""
        message = self.in_flight[offset] = InFlightMessage(offset, message_group)
        heappush(self._lowest, offset)
        self._drop_settled()
        self.opened_since_journal.append(offset)
        if message_group is not None:
            group = self.message_groups.setdefault(message_group, MessageGroupQueue())
            group.offsets.append(offset)
            self._waiting += 1
        return message

    def lease_new(self, count: int, lease: Lease) -> list[InFlightMessage]:
        """Put `count` messages from the cursor on in flight, and lease them.

        This is the fast way for messages without message groups.
        """
        offsets = range(self.cursor, self.cursor + count)
        lease_id, deadline, expires, pop_time, client_id = lease
        values = (None, 1, lease_id, INVISIBLE, deadline, expires, pop_time, False, client_id)
        new = [InFlightMessage(offset, *values) for offset in offsets]
        self.in_flight.update(zip(offsets, new, strict=True))
        for offset in offsets:
            heappush(self._lowest, offset)
        self.opened_since_journal += offsets
        self.cursor += count
        self._drop_settled()
        return new

    def next_visible(self) -> list[InFlightMessage]:
        """Remove and return the messages to redeliver next.

        Returns one message, or all messages of one message group. The list is empty if no message
        is visible. The caller must `lease` the messages, or `put_back` the first one.
        """
        while self._visible:
            message = self.in_flight.get(heappop(self._visible))
            if message is None or message.state is INVISIBLE:
                continue
            if message.message_group is None:
                return [message]
            group = self.message_groups[message.message_group]
            if not group.leased and group.offsets[0] == message.offset:
                return [self.in_flight[offset] for offset in group.offsets]
        return []

    def put_back(self, message: InFlightMessage) -> None:
        heappush(self._visible, message.offset)

    def lease(self, message: InFlightMessage, lease: Lease) -> None:
        lease_id, deadline_ms, expires_ms, pop_time_ms, client_id = lease
        if message.message_group is not None:
            group = self.message_groups[message.message_group]
            if not message.attempt:
                self._waiting -= 1
                if not group.leased:
                    group.since_ms = pop_time_ms
            group.leased += 1
            group.client_id = client_id or group.client_id
        message.state, message.uncounted = INVISIBLE, False
        message.attempt += 1
        message.lease_id, message.deadline_ms = lease_id, deadline_ms
        message.expires_ms, message.pop_time_ms = expires_ms, pop_time_ms
        message.client_id = client_id
        message.rejection = None

    # ---- end of a lease ----

    def acknowledge(self, offsets: Sequence[int], lease_id: int, now_ms: int) -> Acknowledged:
        """Acknowledge the messages at some offsets that are on a lease.

        `now_ms` is the current monotonic time.
        """
        ended: list[InFlightMessage] = []
        settled: list[InFlightMessage] = []
        invalid: list[int] = []
        for index, offset in enumerate(offsets):
            message = self.on_lease(offset, lease_id, now_ms)
            if message is None:
                invalid.append(index)
                continue
            ended.append(message)
            if message.message_group is None:
                del self.in_flight[offset]
                message.state = SETTLED
                settled.append(message)
            else:
                settled += self._end_lease(message, ACKED)
        return Acknowledged(ended, settled, invalid)

    def expire(self, message: InFlightMessage) -> None:
        """End the lease of a message, so that it becomes visible.

        A message of a message group becomes visible when no message of the group is on lease.
        """
        if message.uncounted:
            message.attempt, message.uncounted = message.attempt - 1, False
            self._waiting += message.message_group is not None and not message.attempt
        if message.message_group is None:
            message.state = VISIBLE
            heappush(self._visible, message.offset)
        else:
            self._end_lease(message, VISIBLE)

    def drop(self, message: InFlightMessage) -> list[InFlightMessage]:
        """Settle a message that became a dead letter or is not stored any more.

        Returns the message, followed by the later messages of its group that are settled as well.
        """
        was_leased = message.state is INVISIBLE
        self._settle(message)
        if message.message_group is None:
            return [message]
        group = self.message_groups[message.message_group]
        group.offsets.remove(message.offset)
        self._waiting -= not message.attempt
        group.leased -= was_leased
        return [message, *self._settle_front(message.message_group, group)]

    def _end_lease(self, message: InFlightMessage, state: State) -> list[InFlightMessage]:
        name = message.message_group
        assert name is not None
        group = self.message_groups[name]
        message.state = state
        group.leased -= 1
        return self._settle_front(name, group)

    def _settle_front(self, name: str, group: MessageGroupQueue) -> list[InFlightMessage]:
        """Settle the acknowledged messages at the front of a message group, and return them.

        If no other message of the group is on lease, makes the other messages visible.
        """
        settled = []
        while group.offsets and self.in_flight[group.offsets[0]].state is ACKED:
            message = self.in_flight[group.offsets.popleft()]
            self._settle(message)
            settled.append(message)
        if not group.offsets:
            del self.message_groups[name]
        elif not group.leased:
            for offset in group.offsets:
                self.in_flight[offset].state = VISIBLE
            heappush(self._visible, group.offsets[0])
        return settled

    def _settle(self, message: InFlightMessage) -> None:
        del self.in_flight[message.offset]
        message.state = SETTLED

    def _drop_settled(self) -> None:
        """Remove settled offsets from the heap if it contains too many of them.

        Otherwise, they would stay in the heap as long as a lower offset is in flight.
        """
        if len(self._lowest) > 2 * len(self.in_flight) + _SLACK:
            self._lowest = sorted(self.in_flight)

    # ---- the journal ----

    def journalled(self) -> JournalMark:
        """Mark the cursor and all messages in flight as journalled.

        Returns the previous mark, which `roll_back_leases` needs.
        """
        before = JournalMark(self.journalled_cursor, self.opened_since_journal)
        self.journalled_cursor, self.opened_since_journal = self.cursor, []
        return before

    def distrust_journal(self) -> None:
        """Make the next lease write all messages in flight to the journal again.

        Call this if the journal may lack some of them.
        """
        self.journalled_cursor = self.committed_offset
        self.opened_since_journal = sorted(self.in_flight)

    def roll_back_leases(
        self, messages: Sequence[InFlightMessage], mark: JournalMark | None
    ) -> None:
        """Undo leases, because the journal does not contain them.

        `mark` is the result of `journalled`, or None if it was not called for these leases.
        """
        for message in messages:
            message.state = VISIBLE
            message.attempt -= 1
        if mark is not None:
            self.journalled_cursor = min(self.journalled_cursor, mark.cursor)
            self.opened_since_journal = sorted({*mark.opened, *self.opened_since_journal})
        self.rebuild()

    def roll_back_settlement(
        self, ended: Sequence[InFlightMessage], settled: Sequence[InFlightMessage]
    ) -> None:
        """Undo an acknowledgement or a dead letter.

        `ended` and `settled` are the messages that it changed (see Acknowledged).
        """
        for message in settled:
            self.in_flight[message.offset] = message
            if message.state is SETTLED:  # else, its own acknowledgement was rolled back before
                message.state = ACKED
        for message in ended:
            message.state = INVISIBLE
        self.rebuild()

    # ---- the whole queue ----

    def reset(self, cursor: int) -> None:
        self.resets += 1
        for message in self:
            message.state = SETTLED
        self.in_flight.clear()
        self.cursor = self.journalled_cursor = cursor
        self.opened_since_journal.clear()
        self.rebuild()

    def end_at(self, end: int) -> None:
        """Lower the cursor to the end of the queue, and remove the messages in flight after it."""
        for message in [message for message in self if message.offset >= end]:
            self._settle(message)
        self.cursor = end
        self.distrust_journal()
        self.rebuild()

    def rebuild(self) -> None:
        """Rebuild the message groups and the heaps from the messages in flight."""
        before, self.message_groups, self._waiting = self.message_groups, {}, 0
        self._lowest = sorted(self.in_flight)
        for offset in self._lowest:
            message = self.in_flight[offset]
            if message.message_group is not None:
                group = self.message_groups.get(message.message_group)
                if group is None:
                    known = before.get(message.message_group) or MessageGroupQueue()
                    group = replace(known, offsets=deque(), leased=0)
                    self.message_groups[message.message_group] = group
                group.offsets.append(offset)
                group.client_id = group.client_id or message.client_id
                group.leased += message.state is INVISIBLE
                self._waiting += not message.attempt
        for group in self.message_groups.values():
            self._drop_void_acks(group)
        self._visible = [
            message.offset
            for message in self
            if message.state is not INVISIBLE
            and (message.message_group is None or not self._is_leased(message.message_group))
        ]
        heapify(self._visible)

    def _is_leased(self, message_group: str) -> bool:
        return self.message_groups[message_group].leased > 0

    def _drop_void_acks(self, group: MessageGroupQueue) -> None:
        """Make messages of a message group visible that were acknowledged with an expired lease.

        The journal does not record which leases have expired. An acknowledgement therefore stays
        valid only if its lease is the latest one that still has messages of the group.
        """
        messages = [self.in_flight[offset] for offset in group.offsets]
        leases = [message.lease_id for message in messages if message.state is INVISIBLE]
        latest = max(leases, default=None)
        for message in messages:
            if message.state is ACKED and message.lease_id != latest:
                message.state = VISIBLE

    def regroup(self, message_group_of: Callable[[int], str] | None) -> None:
        """Assign each message to the message group that the function returns for its offset.

        If the function is None, the messages have no message groups any more.
        """
        for message in self:
            message.message_group = message_group_of(message.offset) if message_group_of else None
            if message.state is ACKED and message_group_of is None:
                message.state = VISIBLE
        self.rebuild()
