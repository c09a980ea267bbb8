"""Settle and renew the leases of one consumer, and count the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from aerobee.broker.v1 import message_pb2

from aerobee_client.leasing.lease_calls import Change, Changed, DeadLetterEntry, LeaseCalls, Outcome
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.renewal import LeaseRenewal, Renewal
from aerobee_client.observing.statistics import ConsumerStatistics, Tally
from aerobee_client.runtime.clock import Clock
from aerobee_cluster.leases import is_over
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.status import MqError

FORGET_INTERVAL_MS = 10_000  # between two checks for leases that have ended


@dataclass(slots=True)
class _Pop:
    """The counts of messages of one pop that are on lease.

    Times are times of the monotonic clock. `until_ms` is the end of the last lease.
    """

    since_ms: int
    until_ms: int
    received: int = 0
    received_bytes: int = 0
    settled: int = 0

    @property
    def left(self) -> int:
        return max(self.received - self.settled, 0)

    @property
    def left_bytes(self) -> int:
        """The bytes of unsettled messages, estimated as if all messages had the same size."""
        return self.received_bytes * self.left // self.received


class OnLease:
    """Counts the messages that a consumer has received, has settled, and still has on lease.

    Counts are kept per pop, not per message. When the leases of a pop have ended, its unsettled
    messages no longer count.
    """

    def __init__(self, clock: Clock) -> None:
        self.tally = Tally(clock)
        self._clock = clock
        self._sent_back = 0
        self._pops: dict[tuple[str, int], _Pop] = {}  # by broker name and lease id
        self._forgot_ms = clock.monotonic_ms()

    def received(self, messages: Sequence[LeasedMessage]) -> None:
        """Count messages of one pop, which several receives may share."""
        first, now_ms = messages[0], self._clock.monotonic_ms()
        if now_ms - self._forgot_ms >= FORGET_INTERVAL_MS:
            self._forgot_ms = now_ms
            self._pops = {key: pop for key, pop in self._pops.items() if pop.until_ms > now_ms}
        pop = self._pops.setdefault(_key(first.handle), _Pop(now_ms, first.until_ms))
        pop.received += len(messages)
        pop.received_bytes += sum(map(_STORE_SIZE, messages))

    def extended(self, handle: ReceiptHandle, until_ms: int) -> None:
        """Record that a lease now ends at `until_ms`."""
        pop = self._pops.get(_key(handle))
        if pop is not None:
            pop.until_ms = max(pop.until_ms, until_ms)

    def consumed(self, handles: Iterable[ReceiptHandle]) -> None:
        """Count acknowledged messages."""
        elapsed_ms, calls = self._settled(handles)
        self.tally.add(calls, 0, elapsed_ms, calls=calls)

    def failed(self, handles: Iterable[ReceiptHandle], *, sent_back: bool) -> None:
        """Count messages that were not consumed.

        If `sent_back`, they were returned for another attempt or dead-lettered. Otherwise their
        lease had ended before they were settled.
        """
        elapsed_ms, calls = self._settled(handles)
        self.tally.add(0, calls, elapsed_ms, calls=calls)
        self._sent_back += calls if sent_back else 0

    def changed(
        self, handles: Iterable[ReceiptHandle], *, duration_ms: int | None, counted: bool
    ) -> None:
        """Count messages whose invisible duration was changed.

        With a duration above 0, the messages are still on lease. If they were returned without
        counting an attempt, they count neither as consumed nor as failed.
        """
        if not duration_ms:
            if counted:
                self.failed(handles, sent_back=True)
            else:
                self._settled(handles)

    def statistics(self, failed_requests: int) -> ConsumerStatistics:
        now_ms = self._clock.monotonic_ms()
        held = [pop for pop in self._pops.values() if pop.until_ms > now_ms]
        consumed_per_second, failed_per_second, average_ms = self.tally.rates()
        return ConsumerStatistics(
            consumed=self.tally.succeeded,
            failed=self.tally.failed,
            sent_back=self._sent_back,
            consumed_per_second=consumed_per_second,
            failed_per_second=failed_per_second,
            average_ms=average_ms,
            waiting=sum(pop.left for pop in held),
            waiting_bytes=sum(pop.left_bytes for pop in held),
            failed_requests=failed_requests,
        )

    def _settled(self, handles: Iterable[ReceiptHandle]) -> tuple[int, int]:
        """Remove settled messages from the counts.

        Return the sum of milliseconds since their receipt, and their number. A message that another
        process received adds 0 ms.
        """
        now_ms, elapsed_ms = self._clock.monotonic_ms(), 0
        of_pops = Counter(map(_key, handles))
        for key, count in of_pops.items():
            pop = self._pops.get(key)
            if pop is not None:
                on_lease = min(count, pop.left)
                pop.settled += on_lease
                elapsed_ms += on_lease * (now_ms - pop.since_ms)
                if not pop.left:
                    del self._pops[key]
        return elapsed_ms, of_pops.total()


_STORE_SIZE = attrgetter("store_size")
# The broker name and the lease id of a receipt handle.
_key: Callable[[ReceiptHandle], tuple[str, int]] = attrgetter("broker_name", "lease_id")


# A received message, or a receipt handle, which may come from another process.
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
        """Count received messages that have the same lease id."""
        self._on_lease.received(messages)

    def statistics(self, failed_requests: int) -> ConsumerStatistics:
        return self._on_lease.statistics(failed_requests)

    async def acknowledge(self, leased: Sequence[Leased]) -> list[Outcome]:
        """Acknowledge messages and return the outcome of each.

        The outcome of a message that this client has settled before is success.
        """
        return await self._settle(leased, self._calls.acknowledge, self._on_lease.consumed)

    async def dead_letter(
        self, leased: Sequence[Leased], failure: message_pb2.Failure
    ) -> list[Outcome]:
        """Move messages to the dead-letter topic with the given failure.

        Return the outcome of each, as `acknowledge` does.
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
        places = [
            place
            for place, one in enumerate(leased)
            if not (isinstance(one, LeasedMessage) and one.is_settled)
        ]
        with self._renewal.suspended(_messages(leased)) as ended:
            handles = [_handle(leased[place]) for place in places]
            answers = await settle(handles)
            self._count(handles, answers, count)
            for place, outcome in zip(places, answers, strict=True):
                one, outcomes[place] = leased[place], outcome
                if isinstance(one, LeasedMessage) and (outcome is None or is_over(outcome)):
                    ended.append(one.handle)
                    if outcome is None:
                        one.settle()
        return outcomes

    def _count(
        self,
        handles: Sequence[ReceiptHandle],
        outcomes: Sequence[object],
        count: Callable[[Sequence[ReceiptHandle]], None],
    ) -> None:
        """Count successful leases with `count`, and count leases that had ended as failed."""
        are_acks = outcomes.count(None) == len(outcomes)  # so there is nothing to look at
        if are_acks or not any(isinstance(outcome, MqError) for outcome in outcomes):
            count(handles)
            return
        asked = list(zip(handles, outcomes, strict=True))
        count([handle for handle, outcome in asked if not isinstance(outcome, MqError)])
        over = [
            handle for handle, outcome in asked if isinstance(outcome, MqError) and is_over(outcome)
        ]
        self._on_lease.failed(over, sent_back=False)

    async def change(
        self, leased: Sequence[Leased], duration_ms: int | None, *, counted: bool
    ) -> list[Outcome]:
        """Set the invisible duration of messages, end their renewal, and return their outcomes.

        If `duration_ms` is None, the retry delay of the group applies.
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
                # After a success or the end of the lease, it needs no renewal.
                if isinstance(one, LeasedMessage) and (outcome is None or is_over(outcome)):
                    ended.append(one.handle)
                if isinstance(one, LeasedMessage) and isinstance(answer, Changed):
                    one.extend(*answer, asked_ms + answer.invisible_duration_ms)
                    self._on_lease.extended(one.handle, one.until_ms)
        return outcomes

    def renew(self, renewal: Renewal) -> None:
        self._renewal.track(renewal)

    def stop_renewal(self, renewal: Renewal) -> None:
        self._renewal.stop(renewal)


def _handle(leased: Leased) -> ReceiptHandle:
    return leased.handle if isinstance(leased, LeasedMessage) else leased


def _messages(leased: Sequence[Leased]) -> list[LeasedMessage]:
    return [one for one in leased if isinstance(one, LeasedMessage)]
