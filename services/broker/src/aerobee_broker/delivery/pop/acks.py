"""What ends a lease: acknowledgement, another duration, a dead letter, time.

Each request is one record of the log and one wait for the disk. It takes effect in memory at once,
so that of two who settle the same message the second finds it settled, and is taken back when the
log does not take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aerobee_broker.delivery.pop.expiry import Due, LeaseExpiry
from aerobee_broker.delivery.pop.in_flight import Held, QueueLeases
from aerobee_broker.delivery.pop.journal import LeaseJournal
from aerobee_broker.delivery.pop.journal_format import settled as settle_entry
from aerobee_broker.delivery.pop.lease_table import GroupLeases, LeaseTable
from aerobee_broker.delivery.pop.selector import Chooser
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.delivery.retry import policy
from aerobee_broker.errors import InvalidParameter, MessageNotFound
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metrics import Meters
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire import topics as names
from aerobee_wire.record import decode
from aerobee_wire.status import Code, MqError

MAX_INVISIBLE_MS = 43_200_000  # 12 h


class LeaseName(NamedTuple):
    """`expires_ms`: as the holder knows it; 0: unknown."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    lease_id: int
    expires_ms: int = 0


class LeaseSet(NamedTuple):
    """Leases that one pop made in one queue; `expires_ms` as in LeaseName, of all of them."""

    consumer_group: str
    topic: str
    queue_id: int
    lease_id: int
    expires_ms: int
    queue_offsets: Sequence[int]


class NotSettled(NamedTuple):
    """Which lease of which set, both by their places from 0 on, and why."""

    lease_set: int
    place: int
    error: MqError


@dataclass(frozen=True, slots=True)
class Change:
    """`invisible_ms` None: the group's retry delay. `unless_changed`: only if the lease still ends
    when its name says."""

    lease: LeaseName
    invisible_ms: int | None
    uncounted: bool = False
    unless_changed: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """The duration that counts now, and from when on."""

    error: MqError | None = None
    since_ms: int = 0
    invisible_ms: int = 0


@dataclass(slots=True)
class _SettledQueue:
    """What one record of the log settles in one queue."""

    place: GroupLeases
    queue: QueueLeases
    ended: list[Held]  # whose lease was ended by it
    gone: list[Held]
    resets: int  # of the queue, until then

    def is_void(self) -> bool:
        """Whether the group was moved, or group or topic deleted, since."""
        return self.queue.resets != self.resets

    def entry(self) -> tuple[tuple[str, str, int], list[int], list[int]]:
        """For `lease_log.settled`."""
        unsettled = self.queue.open
        behind = [held.offset for held in self.ended if held.offset in unsettled]
        return self.place.key(self.queue), [held.offset for held in self.gone], behind


class _Settled(dict[QueueLeases, _SettledQueue]):
    """What one record of the log settles."""

    def add(
        self, place: GroupLeases, queue: QueueLeases, ended: list[Held], gone: list[Held]
    ) -> None:
        found = self.get(queue)
        if found is None:
            self[queue] = _SettledQueue(place, queue, ended, gone, queue.resets)
        else:
            found.ended += ended
            found.gone += gone

    def entry(self) -> dict[str, Any]:
        return settle_entry(one.entry() for one in self.values())


class Settling:
    def __init__(
        self,
        *,
        table: LeaseTable,
        journal: LeaseJournal,
        chooser: Chooser,
        polls: LongPolls,
        topics: TopicRegistry,
        groups: GroupRegistry,
        offsets: ConsumerOffsets,
        meters: Meters,
        clock: Clock,
        levels_ms: Sequence[int],
    ) -> None:
        self._table = table
        self._journal = journal
        self._chooser = chooser
        self._polls = polls
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._meters = meters
        self._clock = clock
        self._levels_ms = levels_ms
        self.expiry = LeaseExpiry(clock, self._time_over)

    # ---- acknowledgement ----

    async def ack(self, lease_sets: Sequence[LeaseSet]) -> list[NotSettled]:
        """Returns what is not settled, in order. Raises what the log raises."""
        settled = _Settled()
        failures = [
            NotSettled(number, place, _over(lease_set, lease_set.queue_offsets[place]))
            for number, lease_set in enumerate(lease_sets)
            for place in self._acknowledge(lease_set, settled)
        ]
        if settled:
            await self._write(settled)
        elif len(failures) < sum(len(one.queue_offsets) for one in lease_sets):
            await self._journal.settled()  # earlier settlements may be on their way to the disk
        return failures

    def _acknowledge(self, lease_set: LeaseSet, settled: _Settled) -> Sequence[int]:
        """Returns the places, in the set, of what it does not settle."""
        group, topic, queue_id, lease_id, expires_ms, offsets = lease_set
        found = self._table.find(group, topic, queue_id)
        if found is None:
            return range(len(offsets))
        queue, now_ms = found[1], self._clock.monotonic_ms()
        ended, gone, over = queue.acknowledge_all(offsets, lease_id, now_ms)
        if ended:
            settled.add(*found, ended, gone)
        if over and expires_ms > self._clock.now_ms():  # else it is no repetition
            return [at for at in over if not queue.is_acknowledged(offsets[at], lease_id)]
        return over

    # ---- another duration ----

    async def change(self, changes: Sequence[Change]) -> list[Shown]:
        """Raises what the log raises."""
        now_ms = self._clock.now_ms()
        shown: list[Shown] = []
        entries: list[list[Any]] = []
        before: list[tuple[Due, tuple[int, int, int, bool]]] = []
        for change in changes:
            try:
                due, duration = self._checked(change)
            except MqError as error:
                shown.append(Shown(error))
                continue
            held = due[2]
            before.append((due, (held.since_ms, held.expires_ms, held.deadline_ms, held.uncounted)))
            self._show(due, now_ms, duration, uncounted=change.uncounted)
            entries.append(_entry(due, duration))
            shown.append(Shown(None, now_ms, duration))

        def undo() -> None:
            for due, (since, expires, deadline, uncounted) in reversed(before):
                held = due[2]
                held.since_ms, held.expires_ms, held.deadline_ms = since, expires, deadline
                held.uncounted = uncounted

        try:
            if entries:
                await self._journal.write("show", {"leases": entries}, undo=undo)
        finally:
            for due, _ in before:  # only now: what is over cannot be taken back
                self.expiry.watch(due)
        return shown

    def give_back(self, leased: Sequence[Due]) -> None:
        """Nobody received them: visible at once, and not counted."""
        now_ms = self._clock.now_ms()
        entries = []
        for due in leased:
            self._show(due, now_ms, 0, uncounted=True)
            self.expiry.watch(due)
            entries.append(_entry(due, 0))
        self._journal.note("show", {"leases": entries})

    def _checked(self, change: Change) -> tuple[Due, int]:
        lease = change.lease
        due = self._alive(lease)
        if due is None:
            raise _over(lease, lease.queue_offset)
        if change.unless_changed and lease.expires_ms != due[2].expires_ms:
            raise MqError(
                Code.INVALID_RECEIPT_HANDLE,
                f"lease {lease.lease_id} on message {lease.queue_offset} of {lease.topic} queue "
                f"{lease.queue_id} was changed meanwhile: leave it to who did that",
            )
        duration = change.invisible_ms
        if duration is None:
            group = self._groups.get(lease.consumer_group)
            return due, self._retry_delay(group, due[2].attempt)
        if not 0 <= duration <= MAX_INVISIBLE_MS:
            raise InvalidParameter(
                f"invisible duration {duration} ms is out of range: use 0 to {MAX_INVISIBLE_MS}"
            )
        return due, duration

    def _retry_delay(self, group: SubscriptionGroup, attempt: int) -> int:
        own = group.retry_delays_ms or self._levels_ms[policy.FIRST_RETRY_LEVEL - 1 :]
        delays = own or self._levels_ms
        return min(delays[min(attempt, len(delays)) - 1], MAX_INVISIBLE_MS)

    def _show(self, due: Due, now_ms: int, duration_ms: int, *, uncounted: bool) -> None:
        held = due[2]
        held.since_ms, held.expires_ms = now_ms, now_ms + duration_ms
        held.deadline_ms = self._clock.monotonic_ms() + duration_ms
        held.uncounted = uncounted

    # ---- dead letters ----

    async def dead_letter(
        self, wanted: Sequence[tuple[LeaseName, policy.Failure]]
    ) -> list[MqError | None]:
        """For each lease None, or why it is no dead letter. Raises what the log raises."""
        for group in {lease.consumer_group for lease, _ in wanted}:
            if self._groups.table.get(group) is not None:
                await self._topics.for_group(names.dead_letter_topic(group))
        outcomes: list[MqError | None] = []
        doomed: list[tuple[Due, policy.Failure]] = []
        seen: set[Held] = set()
        for lease, failure in wanted:
            known = self._groups.table.get(lease.consumer_group) is not None
            due = self._alive(lease) if known else None
            if due is None or due[2] in seen:
                outcomes.append(_over(lease, lease.queue_offset))
                continue
            seen.add(due[2])
            doomed.append((due, failure))
            stored = self._chooser.raw(lease.topic, lease.queue_id, lease.queue_offset)
            outcomes.append(None if stored else _not_stored(lease))
        if doomed:
            await self._bury(doomed)
        return outcomes

    async def _bury(self, doomed: Sequence[tuple[Due, policy.Failure]]) -> None:
        """Stores dead letters and settles. The dead-letter topics exist. Raises, when all the
        others are settled, why one could not be read; that stays as it is."""
        settled = _Settled()
        letters: list[NewMessage] = []
        counts: dict[str, int] = {}
        unreadable: MqError | None = None
        for due, failure in doomed:
            place, queue, held = due
            try:
                raw = self._chooser.raw(place.topic, queue.queue_id, held.offset)
            except MqError as error:
                unreadable = error
                continue
            if raw:
                group = self._groups.get(place.consumer_group)
                letter = policy.dead_lettered(decode(raw, check_crc=False), group, failure=failure)
                letter.reconsume_times = held.attempt
                letters.append(letter)
                counts[place.consumer_group] = counts.get(place.consumer_group, 0) + 1
            settled.add(place, queue, [held], queue.drop(held))
        if settled:
            await self._write(settled, letters)
        for name, count in counts.items():
            self._meters.dead_lettered(name, count)
        if unreadable is not None:
            raise unreadable

    # ---- time ----

    async def _time_over(self, ended: list[Due]) -> None:
        doomed = []
        for due in ended:
            place, queue, held = due
            group = self._groups.table.get(place.consumer_group)
            last = group is not None and policy.is_last_attempt(held.attempt, group)
            if last and not held.uncounted:
                doomed.append((due, policy.Failure()))
                continue
            queue.expire(held)
            self._table.touch()
            self._polls.wake_pop(place.consumer_group, place.topic, queue.queue_id)
        if doomed:
            for name in {due[0].consumer_group for due, _ in doomed}:
                await self._topics.for_group(names.dead_letter_topic(name))
            # What was settled, or reset, while a topic was made, is left out.
            still = [one for one in doomed if _is_open(one[0])]
            for due, _ in still:
                if self._groups.table.get(due[0].consumer_group) is None:  # deleted meanwhile
                    due[1].expire(due[2])
            await self._bury([one for one in still if _is_open(one[0])])

    # ---- common ----

    def _alive(self, lease: LeaseName) -> Due | None:
        found = self._table.find(lease.consumer_group, lease.topic, lease.queue_id)
        if found is None:
            return None
        now_ms = self._clock.monotonic_ms()
        held = found[1].on_lease(lease.queue_offset, lease.lease_id, now_ms)
        return (*found, held) if held else None

    async def _write(self, settled: _Settled, letters: Sequence[NewMessage] = ()) -> None:
        def undo() -> None:
            for queue, one in settled.items():
                if one.is_void():
                    continue
                for held in one.gone:
                    queue.open[held.offset] = held
                    held.acked = True  # except for those whose lease comes back
                for held in one.ended:
                    held.leased, held.acked = True, False
                    self.expiry.watch((one.place, queue, held))
                queue.rebuild()

        try:
            await self._journal.write("settle", settled.entry(), undo=undo, along=letters)
        finally:
            for queue, one in settled.items():
                if one.is_void():
                    continue
                self._commit(one.place, queue)
                if queue.fifo:
                    self._polls.wake_pop(one.place.consumer_group, one.place.topic, queue.queue_id)

    def _commit(self, place: GroupLeases, queue: QueueLeases) -> None:
        self._offsets.commit(place.consumer_group, place.topic, queue.queue_id, queue.committed)


def _entry(due: Due, duration_ms: int) -> list[Any]:
    """For a `show` record."""
    place, queue, held = due
    since = [held.since_ms, duration_ms, held.attempt, int(held.uncounted)]
    return [*place.key(queue), held.offset, held.lease_id, *since]


def _is_open(due: Due) -> bool:
    return due[2].leased and due[1].open.get(due[2].offset) is due[2]


def _over(lease: LeaseName | LeaseSet, queue_offset: int) -> MqError:
    return MqError(
        Code.INVALID_RECEIPT_HANDLE,
        f"no lease {lease.lease_id} on message {queue_offset} of {lease.topic} queue "
        f"{lease.queue_id}: its invisible duration is over or it is settled; the message comes "
        "again if it is not",
    )


def _not_stored(lease: LeaseName) -> MqError:
    return MessageNotFound(
        f"message {lease.queue_offset} of {lease.topic} queue {lease.queue_id} is no longer "
        "stored: there is nothing to dead-letter",
    )
