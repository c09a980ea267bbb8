"""Settle and renew the leases of one consumer, and count the results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from aerobee.broker.v1 import message_pb2

from aerobee_client.leasing.lease_calls import Change, Changed, DeadLetterEntry, LeaseCalls, Outcome
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.on_lease import OnLease
from aerobee_client.leasing.renewal import LeaseRenewal, Renewal
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.runtime.clock import Clock
from aerobee_wire.handles.leases import key_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.status import Code, MqError

# A message that was received, or a receipt handle, which may be of another process.
Leased = LeasedMessage | ReceiptHandle


class Settlements:
    def __init__(self, calls: LeaseCalls, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._on_lease = OnLease(clock)
        self._renewal = LeaseRenewal(calls, clock, self._on_lease.extended)

    async def close(self) -> None:
        """Stop renewals, and wait for settlements in flight."""
        await self._renewal.close()
        await self._calls.drain()

    def received(self, messages: Sequence[LeasedMessage]) -> None:
        """Count received messages of one lease id."""
        self._on_lease.received(messages)

    def statistics(self, failed_requests: int) -> ConsumerStatistics:
        return self._on_lease.statistics(failed_requests)

    async def acknowledge(self, leased: Sequence[Leased]) -> list[Outcome]:
        """Acknowledge messages and return the outcome of each.

        A message that this client has settled before counts as success.
        """
        return await self._settle(leased, self._calls.acknowledge, self._on_lease.consumed)

    async def dead_letter(
        self, leased: Sequence[Leased], failure: message_pb2.Failure
    ) -> list[Outcome]:
        """Copy messages to the dead-letter topic with this failure, and settle them.

        Returns the outcome of each, as `acknowledge` does.
        """

        async def dead_letter(handles: Sequence[ReceiptHandle]) -> Sequence[Outcome]:
            return await self._calls.dead_letter([DeadLetterEntry(one, failure) for one in handles])

        return await self._settle(
            leased, dead_letter, partial(self._on_lease.failed, sent_back=True)
        )

    async def _settle(
        self,
        leased: Sequence[Leased],
        settle: Callable[[Sequence[ReceiptHandle]], Awaitable[Sequence[Outcome]]],
        count: Callable[[Sequence[ReceiptHandle]], None],
    ) -> list[Outcome]:
        outcomes: list[Outcome] = [None] * len(leased)
        places = [place for place, one in enumerate(leased) if not _is_settled(one)]
        with self._renewal.suspended(_messages(leased)) as ended:
            handles = [_handle(leased[place]) for place in places]
            answers = await settle(handles)
            self._count(handles, answers, count)
            for place, outcome in zip(places, answers, strict=True):
                one, outcomes[place] = leased[place], outcome
                if isinstance(one, LeasedMessage) and _has_ended(outcome):
                    ended.add(key_of(one.handle))
                    if outcome is None:
                        one.settle()
        return outcomes

    def _count(
        self,
        handles: Sequence[ReceiptHandle],
        outcomes: Sequence[object],
        count: Callable[[Sequence[ReceiptHandle]], None],
    ) -> None:
        """Count the successful leases with `count`, and those that had ended as failed."""
        if not any(isinstance(outcome, MqError) for outcome in outcomes):
            count(handles)
            return
        asked = list(zip(handles, outcomes, strict=True))
        count([handle for handle, outcome in asked if not isinstance(outcome, MqError)])
        over = [
            handle
            for handle, outcome in asked
            if isinstance(outcome, MqError) and outcome.code is Code.INVALID_RECEIPT_HANDLE
        ]
        self._on_lease.failed(over, sent_back=False)

    async def change(
        self, leased: Sequence[Leased], duration_ms: int | None, *, counted: bool
    ) -> list[Outcome]:
        """Set the invisible duration of messages, and end their renewal.

        `duration_ms`: None for the retry delay of the group.
        """
        outcomes: list[Outcome] = []
        asked_ms = self._clock.monotonic_ms()
        changes = [Change(_handle(one), duration_ms, counted) for one in leased]
        with self._renewal.suspended(_messages(leased)) as ended:
            answers = await self._calls.change(changes)
            self._count(
                [change.handle for change in changes],
                answers,
                partial(self._on_lease.changed, duration_ms=duration_ms, counted=counted),
            )
            for one, answer in zip(leased, answers, strict=True):
                outcomes.append(outcome := answer if isinstance(answer, MqError) else None)
                if isinstance(one, LeasedMessage) and _has_ended(outcome):
                    ended.add(key_of(one.handle))
                if isinstance(one, LeasedMessage) and isinstance(answer, Changed):
                    one.extend(*answer, asked_ms + answer.invisible_duration_ms)
                    self._on_lease.extended(one.handle, one.until_ms)
        return outcomes

    def renew(self, renewal: Renewal) -> None:
        self._renewal.track(renewal)

    def stop_renewal(self, renewal: Renewal) -> None:
        self._renewal.stop(renewal)


def _is_settled(leased: Leased) -> bool:
    return isinstance(leased, LeasedMessage) and leased.is_settled


def _has_ended(outcome: Outcome) -> bool:
    """Return whether the lease needs no renewal after a call."""
    return outcome is None or outcome.code is Code.INVALID_RECEIPT_HANDLE


def _handle(leased: Leased) -> ReceiptHandle:
    return leased.handle if isinstance(leased, LeasedMessage) else leased


def _messages(leased: Sequence[Leased]) -> list[LeasedMessage]:
    return [one for one in leased if isinstance(one, LeasedMessage)]
