"""Renew leases while their messages are being processed.

A lease is renewed for its own invisible duration when half of that duration has passed. If a client
dies, its messages are therefore not blocked longer than those of a client without renewal. Renewal
stops after three hours. The end of a lease is measured by this client's monotonic clock, because
the broker's time of day may differ.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from aerobee_client.leasing.lease_calls import Change, Changed, LeaseCalls
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.runtime.clock import Clock
from aerobee_cluster.leases import MAX_RENEWED_MS, is_over
from aerobee_wire.handles.leases import LeaseKey, key_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

RETRY_MS = 1_000  # after a failed renewal
TOGETHER_MS = 100  # renewals that are due within this time share one request


class Renewal:
    """Messages whose leases are renewed together.

    Attributes:
        messages: The messages.
        lost: Messages whose lease has ended in spite of the renewal. These messages are redelivered
            to this or another consumer.
    """

    def __init__(self, messages: Sequence[LeasedMessage]) -> None:
        self.messages = tuple(messages)
        self.lost: list[LeasedMessage] = []


@dataclass(slots=True, eq=False)
class _Tracked:
    """A lease under renewal. Times are times of the monotonic clock."""

    message: LeasedMessage
    renewal: Renewal
    since_ms: int
    due_ms: int
    under_way: bool = False
    # True if the last renewal got no answer, so that the broker may know another end of the lease.
    uncertain: bool = False


class LeaseRenewal:
    """Renews leases.

    After each renewal, `on_renewed` is called with the handle of the lease and its new end by the
    monotonic clock.
    """

    def __init__(
        self,
        calls: LeaseCalls,
        clock: Clock,
        on_renewed: Callable[[ReceiptHandle, int], None] = lambda handle, until_ms: None,
    ) -> None:
        self._calls = calls
        self._on_renewed = on_renewed
        self._clock = clock
        self._tracked: dict[LeaseKey, _Tracked] = {}
        self._sooner = asyncio.Event()
        self._next_ms: int | None = None  # when `_run` looks at the leases again; None: never
        self._task: asyncio.Task[None] | None = None
        self._renewals: set[asyncio.Task[None]] = set()

    def track(self, renewal: Renewal) -> None:
        """Renew the leases of the messages in `renewal` from now on."""
        now_ms = self._clock.monotonic_ms()
        for message in renewal.messages:
            if not message.is_settled:
                due_ms = message.until_ms - message.handle.invisible_duration_ms // 2
                tracked = _Tracked(message, renewal, now_ms, due_ms)
                self._tracked[key_of(message.handle)] = tracked
                self._look_by(due_ms)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="lease renewal")

    @contextmanager
    def suspended(self, messages: Sequence[LeasedMessage]) -> Iterator[list[ReceiptHandle]]:
        """Suspend the renewal of leases while the client changes or settles them.

        The block appends the handles of ended leases to the yielded list. Afterwards, renewal
        resumes for the other leases.
        """
        ended: list[ReceiptHandle] = []
        keys = [key_of(message.handle) for message in messages] if self._tracked else []
        found = {key: self._tracked.pop(key, None) for key in keys}
        try:
            yield ended
        finally:
            over = set(map(key_of, ended)) if found else set()
            for key, tracked in found.items():
                if tracked is not None and key not in over:
                    self._tracked.setdefault(key, tracked)
                    self._look_by(tracked.due_ms)

    def stop(self, renewal: Renewal) -> None:
        """Stop renewing the leases that `track` started for `renewal`."""
        for message in renewal.messages:
            key = key_of(message.handle)
            tracked = self._tracked.get(key)
            if tracked is not None and tracked.renewal is renewal:
                del self._tracked[key]

    async def close(self) -> None:
        self._tracked.clear()
        tasks = [*self._renewals, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look_by(self, due_ms: int) -> None:
        """Wake `_run` if it would look at the leases only after this time.

        It looks at all of them, so that a settled lease must not wake it.
        """
        if self._next_ms is None or due_ms < self._next_ms:
            self._sooner.set()

    async def _run(self) -> None:
        while True:
            now_ms = self._clock.monotonic_ms()
            waiting = [one for one in self._tracked.values() if not one.under_way]
            due = [one for one in waiting if one.due_ms <= now_ms + TOGETHER_MS]
            later = (one.due_ms for one in waiting if one.due_ms > now_ms + TOGETHER_MS)
            next_ms = min(later, default=None)
            by_broker: dict[str, list[_Tracked]] = {}
            for one in due:
                by_broker.setdefault(one.message.broker_name, []).append(one)
            for own in by_broker.values():
                task = asyncio.create_task(self._renew(own))
                self._renewals.add(task)
                task.add_done_callback(self._renewals.discard)
            self._sooner.clear()
            self._next_ms = next_ms
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    None if next_ms is None else max(0, next_ms - now_ms) / 1_000
                ):
                    await self._sooner.wait()

    async def _renew(self, due: Sequence[_Tracked]) -> None:
        """Renew leases of messages from one broker."""
        asked_ms = self._clock.monotonic_ms()
        wanted = []
        for tracked in due:
            if asked_ms - tracked.since_ms >= MAX_RENEWED_MS:
                log.warning("%r has been renewed for three hours: no more", tracked.message)
                self._drop(tracked)
            else:
                tracked.under_way = True
                wanted.append(tracked)
        changes = [
            Change(
                one.message.handle,
                one.message.handle.invisible_duration_ms,
                unless_changed=not one.uncertain,
            )
            for one in wanted
        ]
        outcomes = await self._calls.change(changes)
        for tracked, outcome in zip(wanted, outcomes, strict=True):
            tracked.under_way = False
            if isinstance(outcome, Changed):
                duration_ms = outcome.invisible_duration_ms
                tracked.message.extend(*outcome, asked_ms + duration_ms)
                self._on_renewed(tracked.message.handle, asked_ms + duration_ms)
                tracked.due_ms = asked_ms + duration_ms // 2
                tracked.uncertain = False
            else:
                self._failed(tracked, outcome)
            self._look_by(tracked.due_ms)

    def _failed(self, tracked: _Tracked, error: MqError) -> None:
        """Mark a lease as lost if it has ended. Otherwise, retry the renewal later."""
        now_ms = self._clock.monotonic_ms()
        tracked.uncertain = True
        tracked.due_ms = now_ms + RETRY_MS
        ended = now_ms >= tracked.message.until_ms
        if not self._is_tracked(tracked) or not (ended or is_over(error)):
            return
        log.warning("the lease of %r is lost: %s", tracked.message, error)
        self._drop(tracked)
        tracked.renewal.lost.append(tracked.message)

    def _is_tracked(self, tracked: _Tracked) -> bool:
        """Return False if the client has changed or settled the lease in the meantime."""
        return self._tracked.get(key_of(tracked.message.handle)) is tracked

    def _drop(self, tracked: _Tracked) -> None:
        if self._is_tracked(tracked):
            del self._tracked[key_of(tracked.message.handle)]
