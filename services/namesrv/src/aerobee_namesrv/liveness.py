"""The background work of the name server: submits expired brokers, unregisters submitted ones.

Both coroutines run until they are cancelled; `app` owns their tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from aerobee_chassis.clock import Clock
from aerobee_namesrv.routing.broker_live_table import BrokerLiveTable
from aerobee_namesrv.routing.removals import RemovalQueue
from aerobee_namesrv.routing.route_info_manager import RouteInfoManager

FIRST_SCAN_MS = 5_000


async def scan_for_expired(
    table: BrokerLiveTable,
    clock: Clock,
    interval_ms: int,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Submit expired brokers for removal every `interval_ms`, the first time after at most 5 s.

    A late scan is skipped: this process was suspended, and the heartbeats that arrived meanwhile
    have not been read yet.
    """
    pause_ms = min(FIRST_SCAN_MS, interval_ms)
    while True:
        due_ms = clock.monotonic_ms() + pause_ms
        await sleep(pause_ms / 1_000)
        late_ms = clock.monotonic_ms() - due_ms
        if late_ms > max(FIRST_SCAN_MS, interval_ms):
            structlog.get_logger().warning("expiry_scan_skipped", late_ms=late_ms)
        elif expired := table.expire():
            structlog.get_logger().warning("brokers_expired", count=expired)
        pause_ms = interval_ms


async def remove_in_batches(manager: RouteInfoManager, removals: RemovalQueue) -> None:
    """Unregister the brokers in the removal queue as soon as it is not empty."""
    while True:
        manager.unregister(await removals.next_batch())
