"""Leases that this proxy renews: those of push consumers, which do not say how long they need.

Renewed while the client lives, for longer each time, three hours in all; then the message comes
again by the retry policy of its group. Each broker is asked by itself, so that one that hangs
keeps no other's leases from being renewed. When a lease ends is measured here: the time of day may
be another at the broker. Nothing here must survive: what a proxy that was killed no
longer renews comes again when its lease runs out. A client may settle or give back a message
through another proxy: the broker then refuses the next renewal here, and the lease is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from aerobee.broker.v1.pop_pb2 import InvisibleChange

from aerobee_chassis.clock import Clock
from aerobee_proxy.cluster.broker_calls import Brokers
from aerobee_proxy.cluster.leases import Key, invisible_for, key_of, lease_of
from aerobee_proxy.cluster.log_throttle import Seldom
from aerobee_proxy.counts import Counts
from aerobee_wire.receipt_handle import ReceiptHandle
from aerobee_wire.status import Code, MqError

SCAN_S = 5.0
AHEAD_MS = 10_000  # of the end of a lease
DURATIONS_MS = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
LONGEST_MS = 3 * 3_600_000
OF_A_CLIENT_THAT_LEFT_MS = 1_000


@dataclass(slots=True, eq=False)
class Renewed:
    handle: ReceiptHandle
    client_id: str
    user: str  # of that client's session
    message_id: str
    expires_ms: int  # as the broker says
    since_ms: int  # monotonic
    until_ms: int  # monotonic: when the lease ends
    count: int = 0
    # Nobody knows whether the last renewal came about, and so when the lease ends.
    uncertain: bool = False


class Renewals:
    """`lives`: whether the client of a user is still there, as far as this proxy knows. `seen`: the
    members of a group that a broker heard of lately, through any proxy; may raise MqError."""

    def __init__(
        self,
        brokers: Brokers,
        clock: Clock,
        counts: Counts,
        *,
        lives: Callable[[str, str], bool],
        seen: Callable[[str, str], Awaitable[frozenset[str]]],
    ) -> None:
        self._brokers = brokers
        self._clock = clock
        self._counts = counts
        self._lives = lives
        self._seen = seen
        self._held: dict[Key, Renewed] = {}
        self._seldom = Seldom(clock)

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, handle: ReceiptHandle, client_id: str, message_id: str, user: str = "") -> None:
        """From now on the lease is renewed."""
        now_ms = self._clock.monotonic_ms()
        # Less than its duration where it was received before, in an attempt that is repeated.
        left_ms = min(handle.invisible_duration_ms, handle.expires_ms - self._clock.now_ms())
        self._held[key_of(handle)] = Renewed(
            handle, client_id, user, message_id, handle.expires_ms, now_ms, now_ms + left_ms
        )

    def find(
        self,
        client_id: str,
        topic: str,
        consumer_group: str,
        message_id: str,
        user: str = "",
    ) -> ReceiptHandle | None:
        """The lease of a message that a client holds, for who forgot the handle. Looks at all."""
        wanted = (client_id, user, message_id, topic, consumer_group)
        for held in self._held.values():
            names = (held.handle.topic, held.handle.consumer_group)
            if (held.client_id, held.user, held.message_id, *names) == wanted:
                return held.handle
        return None

    def release(self, key: Key) -> Renewed | None:
        """The client settles it: no renewal may cross that. Give it to `restore` if it fails."""
        return self._held.pop(key, None)

    def restore(self, released: Renewed | None) -> None:
        """The settlement did not come about and will be tried again."""
        if released is not None:
            self._held[key_of(released.handle)] = released

    async def run(self) -> None:
        rounds: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                await asyncio.sleep(SCAN_S)
                for name, held in self._by_broker().items():
                    if name not in rounds:
                        rounds[name] = asyncio.create_task(self._round(name, held))
                        rounds[name].add_done_callback(partial(_ended, rounds, name))
        finally:
            going_on = list(rounds.values())
            for one in going_on:
                one.cancel()
            await asyncio.gather(*going_on, return_exceptions=True)

    async def scan(self) -> None:
        """One round at every broker."""
        rounds = (self._round(name, held) for name, held in self._by_broker().items())
        await asyncio.gather(*rounds)

    def _by_broker(self) -> dict[str, list[Renewed]]:
        found: dict[str, list[Renewed]] = {}
        for held in self._held.values():
            found.setdefault(held.handle.broker_name, []).append(held)
        return found

    async def _round(self, broker_name: str, several: Sequence[Renewed]) -> None:
        """Renews what runs out soon, and gives back what belongs to clients that left."""
        absent = [held for held in several if not self._lives(held.client_id, held.user)]
        left = await self._left(broker_name, absent)
        now_ms = self._clock.monotonic_ms()
        due = []
        for held in several:
            if held in left:
                due.append(self._give_back(held, OF_A_CLIENT_THAT_LEFT_MS))
            elif now_ms - held.since_ms >= LONGEST_MS:
                due.append(self._give_back(held, None))
            elif held.until_ms - now_ms <= AHEAD_MS:
                due.append(self._renew(held))
        await asyncio.gather(*due)

    async def _left(self, broker_name: str, absent: Collection[Renewed]) -> set[Renewed]:
        """Those whose clients are not to be heard through another proxy either. A client may have
        connections to several, and whoever cannot be asked about has not left."""
        groups = {one.handle.consumer_group for one in absent}
        found = await asyncio.gather(
            *(self._seen(broker_name, group) for group in groups), return_exceptions=True
        )
        seen: dict[str, frozenset[str] | BaseException] = dict(zip(groups, found, strict=True))
        left = set()
        for one in absent:
            members = seen[one.handle.consumer_group]
            if isinstance(members, frozenset):
                if one.client_id not in members:
                    left.add(one)
            elif not isinstance(members, MqError):
                raise members
        return left

    async def _renew(self, held: Renewed) -> None:
        if not self._holds(held):
            return
        duration_ms = DURATIONS_MS[min(held.count, len(DURATIONS_MS) - 1)]
        change = invisible_for(held.handle, duration_ms, counted=True)
        _only_if_unchanged(change, held)
        asked_ms = self._clock.monotonic_ms()
        try:
            result = await self._brokers.change(held.handle.broker_name, change)
        except MqError as error:
            self._failed(held, error)
            return
        held.count += 1
        held.uncertain = False
        held.expires_ms = result.pop_time_ms + result.invisible_duration_ms
        held.until_ms = asked_ms + result.invisible_duration_ms
        self._counts.leases_renewed += 1

    async def _give_back(self, held: Renewed, after_ms: int | None) -> None:
        """`after_ms` None: by the retry policy of the group."""
        if not self._holds(held):
            return
        self._held.pop(key_of(held.handle), None)
        change = InvisibleChange(lease=lease_of(held.handle), by_retry_policy=True)
        if after_ms is not None:
            change = invisible_for(held.handle, after_ms, counted=True)
        _only_if_unchanged(change, held)
        try:
            await self._brokers.change(held.handle.broker_name, change)
        except MqError as error:
            self._held.setdefault(key_of(held.handle), held)  # tried again, unless held anew
            self._failed(held, error)

    def _failed(self, held: Renewed, error: MqError) -> None:
        """A lease that is over is forgotten; another failure is tried again until it runs out."""
        held.uncertain = True
        over = self._clock.monotonic_ms() >= held.until_ms
        if over or error.code is Code.INVALID_RECEIPT_HANDLE:
            self._forget(held)
        untold = self._seldom.due(f"{held.handle.broker_name} {error.code}")
        if untold is None:
            return
        structlog.get_logger().warning(
            "lease not renewed",
            client_id=held.client_id,
            broker=held.handle.broker_name,
            topic=held.handle.topic,
            queue_id=held.handle.queue_id,
            queue_offset=held.handle.queue_offset,
            reason=error.message,
            untold=untold,
        )

    def _forget(self, held: Renewed) -> None:
        if self._holds(held):
            del self._held[key_of(held.handle)]

    def _holds(self, held: Renewed) -> bool:
        """Not if it was released meanwhile, and perhaps held anew."""
        return self._held.get(key_of(held.handle)) is held


def _ended(rounds: dict[str, asyncio.Task[None]], name: str, task: asyncio.Task[None]) -> None:
    del rounds[name]
    if not task.cancelled() and (error := task.exception()) is not None:
        structlog.get_logger().error("leases not looked at", broker=name, exc_info=error)


def _only_if_unchanged(change: InvisibleChange, held: Renewed) -> None:
    if not held.uncertain:
        change.unless_changed = True
        change.lease.expires_timestamp_ms = held.expires_ms
