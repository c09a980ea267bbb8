"""Changes the invisible durations of leased messages.

A consumer may request a new duration, or ask for the retry delay of its group. If a pop is
cancelled, so that no client receives its messages, their invisible durations end at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aerobee_broker.delivery.pop.expiry import LeaseDeadlines
from aerobee_broker.delivery.pop.in_flight import Invisibility
from aerobee_broker.delivery.pop.lease_journal import LeaseJournal
from aerobee_broker.delivery.pop.lease_journal_format import (
    ChangedLease,
    ChangeRecord,
    rejections_of,
)
from aerobee_broker.delivery.pop.lease_table import LeasedMessage, LeaseName, LeaseTable
from aerobee_broker.delivery.retry import policy
from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_chassis.clock import Clock
from aerobee_wire.status import Code, MqError

MAX_INVISIBLE_DURATION_MS = 43_200_000  # 12 h


@dataclass(frozen=True, slots=True)
class InvisibleChange:
    """A request to change the invisible duration of a leased message.

    If `invisible_duration_ms` is None, the retry delay of the group applies. If `uncounted` is
    true, the next delivery has the same attempt number. If `unless_changed` is true, the change
    fails unless the lease still expires at `lease.expires_ms`. If there is a `rejection`, the
    consumer failed to consume the message, and does not only ask for more time; the failure is
    empty if it did not say why.
    """

    lease: LeaseName
    invisible_duration_ms: int | None
    uncounted: bool = False
    unless_changed: bool = False
    rejection: Failure | None = None


@dataclass(frozen=True, slots=True)
class InvisibleDuration:
    """The new invisible duration and its beginning, or the error that prevented the change."""

    error: MqError | None = None
    pop_time_ms: int = 0
    invisible_duration_ms: int = 0


class _Changed(NamedTuple):
    leased: LeasedMessage
    before: Invisibility
    rejection_before: Failure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InvisibleDurations:
    """Changes the invisible durations of leased messages.

    If `whole_batches` is true, an uncounted change of one message applies to all messages of its
    queue that have the same lease.
    """

    table: LeaseTable
    journal: LeaseJournal
    deadlines: LeaseDeadlines
    groups: GroupRegistry
    clock: Clock
    levels_ms: Sequence[int]
    whole_batches: bool = False

    async def change(self, changes: Sequence[InvisibleChange]) -> list[InvisibleDuration]:
        """Apply changes, and return a result for each of them when they are durable.

        Raises the errors of LeaseJournal.write.
        """
        now_ms = self.clock.now_ms()
        results: list[InvisibleDuration] = []
        entries: list[ChangedLease] = []
        changed: list[_Changed] = []
        for change in changes:
            try:
                leased = self._leased(change)
                duration_ms = self._duration(change, leased)
            except MqError as error:
                results.append(InvisibleDuration(error))
                continue
            for each in self._concerned(change, leased):
                message = each.message
                changed.append(_Changed(each, message.invisibility, message.rejection))
                entries.append(self._apply(each, now_ms, duration_ms, uncounted=change.uncounted))
                message.rejection = change.rejection
            results.append(InvisibleDuration(None, now_ms, duration_ms))

        def roll_back() -> None:
            for leased, before, rejection in reversed(changed):
                leased.message.invisibility, leased.message.rejection = before, rejection

        try:
            if entries:
                record = ChangeRecord(
                    entries, rejections_of(leased.message.rejection for leased, _, _ in changed)
                )
                await self.journal.write([record], roll_back)
        finally:
            # Not earlier, because an expiry during the write could not be rolled back.
            for leased, _, _ in changed:
                self.deadlines.watch(leased)
        return results

    def give_back(self, messages: Iterable[LeasedMessage]) -> None:
        """Make leased messages visible at once, because no consumer received them.

        The delivery does not count as an attempt. Raises the errors of the store.
        """
        now_ms = self.clock.now_ms()
        entries = []
        for leased in messages:
            entries.append(self._apply(leased, now_ms, 0, uncounted=True))
            self.deadlines.watch(leased)
        self.journal.append(ChangeRecord(entries))

    def _leased(self, change: InvisibleChange) -> LeasedMessage:
        lease = change.lease
        leased = self.table.leased(lease)
        if change.unless_changed and lease.expires_ms != leased.message.expires_ms:
            raise MqError(
                Code.INVALID_RECEIPT_HANDLE,
                f"lease {lease.lease_id} on message {lease.queue_offset} of {lease.topic} queue "
                f"{lease.queue_id} was changed meanwhile by another caller: leave it to that one",
            )
        return leased

    def _concerned(self, change: InvisibleChange, leased: LeasedMessage) -> list[LeasedMessage]:
        if not (self.whole_batches and change.uncounted):
            return [leased]
        queue, message = leased
        return [
            LeasedMessage(queue, each)
            for each in queue
            if each.is_leased and each.lease_id == message.lease_id
        ]

    def _duration(self, change: InvisibleChange, leased: LeasedMessage) -> int:
        duration_ms = change.invisible_duration_ms
        if duration_ms is None:
            group = self.groups.get(change.lease.consumer_group)
            delay_ms = policy.retry_delay_ms(leased.message.attempt, group, self.levels_ms)
            return min(delay_ms, MAX_INVISIBLE_DURATION_MS)
        if not 0 <= duration_ms <= MAX_INVISIBLE_DURATION_MS:
            raise InvalidParameter(
                f"invisible duration {duration_ms} ms is out of range: "
                f"use 0 to {MAX_INVISIBLE_DURATION_MS}"
            )
        return duration_ms

    def _apply(
        self, leased: LeasedMessage, now_ms: int, duration_ms: int, *, uncounted: bool
    ) -> ChangedLease:
        queue, message = leased
        deadline_ms = self.clock.monotonic_ms() + duration_ms
        message.invisibility = Invisibility(deadline_ms, now_ms + duration_ms, now_ms, uncounted)
        return ChangedLease(
            *queue.key,
            message.offset,
            message.lease_id,
            now_ms,
            duration_ms,
            message.attempt,
            int(uncounted),
        )
