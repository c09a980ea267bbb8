"""Renew the leases of push consumers, which do not say how long they need a message.

A lease is renewed while its client is alive, for longer each time and for up to 3 hours in all.
After that, the message is redelivered by the retry policy of its group.

Each broker has its own renewal task, so that a broker that hangs does not delay renewals at other
brokers. The end of a lease is measured by this process's clock, because the broker's time of day
may differ.

The state does not need to survive a restart: after the proxy is killed, its leases expire and their
messages are redelivered. If a client acknowledges a message through another proxy, the broker
refuses the next renewal, and the lease is dropped here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from aerobee.broker.v1.pop_pb2 import InvisibleChange

from aerobee_chassis.background import pause
from aerobee_chassis.clock import Clock
from aerobee_cluster.leases import MAX_RENEWED_MS, is_over
from aerobee_proxy.cluster.batches import BrokerBatches
from aerobee_proxy.cluster.log_throttle import LogThrottle
from aerobee_proxy.counts import ProxyCounts
from aerobee_wire.handles.leases import LeaseKey, invisible_change, is_of, key_of, lease_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.status import MqError

SCAN_S = 5.0
AHEAD_MS = 10_000  # a lease is renewed this long before it ends
DURATIONS_MS = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
ABANDONED_MS = 1_000  # invisible duration of a message whose client has disconnected


@dataclass(slots=True, eq=False)
class TrackedLease:
    handle: ReceiptHandle
    client_id: str
    user: str  # of the client's session
    message_id: str
    expires_ms: int  # since the epoch, by the broker's clock
    since_ms: int  # monotonic
    due_ms: int  # monotonic; the lease is renewed from then on
    until_ms: int  # monotonic; the lease has ended by then
    renewals: int = 0
    # True if the last renewal failed, so that the end of the lease at the broker is unknown.
    uncertain: bool = False


class LeaseRenewal:
    """Tracks leases and renews them before they end.

    Args:
        batches: Sends the renewals.
        clock: The clock of the proxy.
        counts: Counts the renewals.
        is_alive: Returns whether this proxy has heard from a client recently. The arguments are the
            client id and the user.
        live_members: Returns the ids of the clients that a broker has heard from recently, through
            any proxy. The arguments are the broker name and the group. May raise MqError.
    """

    def __init__(
        self,
        batches: BrokerBatches,
        clock: Clock,
        counts: ProxyCounts,
        *,
        is_alive: Callable[[str, str], bool],
        live_members: Callable[[str, str], Awaitable[frozenset[str]]],
    ) -> None:
        self._batches = batches
        self._clock = clock
        self._counts = counts
        self._is_alive = is_alive
        self._live_members = live_members
        self._tracked: dict[LeaseKey, TrackedLease] = {}
        self._held: dict[tuple[str, str], dict[LeaseKey, TrackedLease]] = {}  # by client and user
        self._log_throttle = LogThrottle(clock)

    def __len__(self) -> int:
        return len(self._tracked)

    def track(self, handle: ReceiptHandle, client_id: str, message_id: str, user: str = "") -> None:
        """Start renewing a lease."""
        now_ms = self._clock.monotonic_ms()
        duration_ms = handle.invisible_duration_ms
        # If a repeated attempt received the message again, a part of the duration has passed. The
        # time of day shows it only if it agrees with the broker's, so it may hasten the renewal,
        # but does not end the lease.
        left_ms = min(duration_ms, handle.expires_ms - self._clock.now_ms())
        self._put(
            TrackedLease(
                handle,
                client_id,
                user,
                message_id,
                handle.expires_ms,
                since_ms=now_ms,
                due_ms=now_ms + left_ms - AHEAD_MS,
                until_ms=now_ms + duration_ms,
            )
        )

    def due_in_ms(self) -> float | None:
        """Return the milliseconds within which the first lease must be renewed.

        A lease is due AHEAD_MS before its end, and the next scan renews it within SCAN_S. Return
        None if no lease is tracked.
        """
        first_ms = min((lease.due_ms for lease in self._tracked.values()), default=None)
        if first_ms is None:
            return None
        return first_ms - self._clock.monotonic_ms() + SCAN_S * 1_000

    def find(
        self,
        client_id: str,
        topic: str,
        consumer_group: str,
        message_id: str,
        user: str = "",
    ) -> ReceiptHandle | None:
        """Find the receipt handle of a message by its message id, among the leases of a client.

        Return None if this client does not hold such a lease.
        """
        wanted = (message_id, consumer_group)
        for lease in self._held.get((client_id, user), {}).values():
            names = (lease.message_id, lease.handle.consumer_group)
            if names == wanted and is_of(lease.handle, topic):
                return lease.handle
        return None

    def held_by(self, client_id: str, user: str = "") -> int:
        """Return the number of leases that are renewed for a client."""
        return len(self._held.get((client_id, user), ()))

    def untrack(self, key: LeaseKey) -> TrackedLease | None:
        """Stop renewing a lease that the client settles or changes.

        Return the lease, or None if it was not tracked. If the client's request fails, pass the
        returned lease to `retrack`.
        """
        lease = self._tracked.pop(key, None)
        if lease is not None:
            holder = lease.client_id, lease.user
            held = self._held[holder]
            del held[key]
            if not held:
                del self._held[holder]
        return lease

    def retrack(self, lease: TrackedLease) -> None:
        self._put(lease)

    def _put(self, lease: TrackedLease) -> None:
        key = key_of(lease.handle)
        self.untrack(key)
        self._tracked[key] = lease
        self._held.setdefault((lease.client_id, lease.user), {})[key] = lease

    async def run(self) -> None:
        """Renew the leases of each broker every SCAN_S until cancelled.

        A scan of a broker's leases starts only after the previous scan of that broker has ended.
        """
        scans: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                await pause(SCAN_S)
                for name, leases in self._by_broker().items():
                    if name not in scans:
                        scans[name] = asyncio.create_task(self._scan_broker(name, leases))
                        scans[name].add_done_callback(partial(_scanned, scans, name))
        finally:
            running = list(scans.values())
            for scan in running:
                scan.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def scan(self) -> None:
        """Scan the leases of every broker once, and renew those that end soon."""
        scans = (self._scan_broker(name, leases) for name, leases in self._by_broker().items())
        await asyncio.gather(*scans)

    def _by_broker(self) -> dict[str, list[TrackedLease]]:
        found: dict[str, list[TrackedLease]] = {}
        for lease in self._tracked.values():
            found.setdefault(lease.handle.broker_name, []).append(lease)
        return found

    async def _scan_broker(self, broker_name: str, leases: Sequence[TrackedLease]) -> None:
        """Renew the leases that end soon, and end the leases of disconnected clients."""
        silent = [lease for lease in leases if not self._is_alive(lease.client_id, lease.user)]
        abandoned = await self._abandoned(broker_name, silent)
        now_ms = self._clock.monotonic_ms()
        changes = []
        for lease in leases:
            if lease in abandoned:
                changes.append(self._give_back(lease, ABANDONED_MS))
            elif now_ms - lease.since_ms >= MAX_RENEWED_MS:
                changes.append(self._give_back(lease, None))
            elif lease.due_ms <= now_ms:
                changes.append(self._renew(lease))
        await asyncio.gather(*changes)

    async def _abandoned(
        self, broker_name: str, silent: Collection[TrackedLease]
    ) -> set[TrackedLease]:
        """Return the leases of clients that the broker has not heard from through any proxy.

        `silent` has the leases of clients that this proxy has not heard from. Such a client may be
        connected to another proxy. If the broker does not answer, no lease is returned.
        """
        groups = {lease.handle.consumer_group for lease in silent}
        found = await asyncio.gather(
            *(self._live_members(broker_name, group) for group in groups), return_exceptions=True
        )
        members_of: dict[str, frozenset[str] | BaseException]
        members_of = dict(zip(groups, found, strict=True))
        abandoned = set()
        for lease in silent:
            members = members_of[lease.handle.consumer_group]
            if isinstance(members, frozenset):
                if lease.client_id not in members:
                    abandoned.add(lease)
            elif not isinstance(members, MqError):
                raise members
        return abandoned

    async def _renew(self, lease: TrackedLease) -> None:
        if not self._is_tracked(lease):
            return
        duration_ms = DURATIONS_MS[min(lease.renewals, len(DURATIONS_MS) - 1)]
        change = invisible_change(lease.handle, duration_ms, counted=True)
        _only_if_unchanged(change, lease)
        asked_ms = self._clock.monotonic_ms()
        try:
            result = await self._batches.change_invisible_duration(lease.handle.broker_name, change)
        except MqError as error:
            self._failed(lease, error)
            return
        lease.renewals += 1
        lease.uncertain = False
        lease.expires_ms = result.pop_time_ms + result.invisible_duration_ms
        lease.until_ms = asked_ms + result.invisible_duration_ms
        lease.due_ms = lease.until_ms - AHEAD_MS
        self._counts.leases_renewed += 1

    async def _give_back(self, lease: TrackedLease, after_ms: int | None) -> None:
        """Stop renewing a lease, and make its message visible after `after_ms`.

        If `after_ms` is None, the retry policy of the group determines the delay.
        """
        if not self._is_tracked(lease):
            return
        self.untrack(key_of(lease.handle))
        change = InvisibleChange(lease=lease_of(lease.handle), by_retry_policy=True)
        if after_ms is not None:
            change = invisible_change(lease.handle, after_ms, counted=True)
        _only_if_unchanged(change, lease)
        try:
            await self._batches.change_invisible_duration(lease.handle.broker_name, change)
        except MqError as error:
            # Retry at the next scan, unless the lease is tracked again already.
            if key_of(lease.handle) not in self._tracked:
                self._put(lease)
            self._failed(lease, error)

    def _failed(self, lease: TrackedLease, error: MqError) -> None:
        """Handle a failed renewal: log it, and drop the lease if it has ended.

        Otherwise the next scan retries the renewal.
        """
        lease.uncertain = True
        ended = self._clock.monotonic_ms() >= lease.until_ms
        if (ended or is_over(error)) and self._is_tracked(lease):
            self.untrack(key_of(lease.handle))
        suppressed = self._log_throttle.allow(f"{lease.handle.broker_name} {error.code}")
        if suppressed is None:
            return
        structlog.get_logger().warning(
            "lease_not_renewed",
            client_id=lease.client_id,
            broker=lease.handle.broker_name,
            topic=lease.handle.topic,
            queue_id=lease.handle.queue_id,
            queue_offset=lease.handle.queue_offset,
            reason=error.message,
            suppressed=suppressed,
        )

    def _is_tracked(self, lease: TrackedLease) -> bool:
        """Return whether this lease is still tracked.

        Return False if the lease was untracked in the meantime, even if the same message is tracked
        again under a new lease.
        """
        return self._tracked.get(key_of(lease.handle)) is lease


def _scanned(scans: dict[str, asyncio.Task[None]], name: str, task: asyncio.Task[None]) -> None:
    del scans[name]
    if not task.cancelled() and (error := task.exception()) is not None:
        structlog.get_logger().error("lease_scan_failed", broker=name, exc_info=error)


def _only_if_unchanged(change: InvisibleChange, lease: TrackedLease) -> None:
    """Make the broker refuse a change if the lease does not end at the time known here."""
    if not lease.uncertain:
        change.unless_changed = True
        change.lease.expires_timestamp_ms = lease.expires_ms
