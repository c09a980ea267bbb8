"""Keep the brokerLiveTable: a map from (cluster, address) to the broker's last sign of life.

A broker is submitted to the removal queue when its last sign of life expires (`expire`) or its
watch ends (`end_watch`). If it gives a sign of life before it is removed, it stays. This module
does not know topics.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from aerobee_chassis.clock import Clock
from aerobee_namesrv.routing.rows import (
    BrokerKey,
    BrokerLive,
    BrokerProcess,
    DataVersion,
    Reason,
    Registration,
    Unregistration,
)
from aerobee_namesrv.routing.watch import Watch


class RemovalQueue:
    """The bounded queue of brokers to unregister. It is emptied in batches.

    A removal visits every topic. With batches, the loss of a rack of forty brokers needs one visit.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: deque[Unregistration] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, unregistration: Unregistration) -> bool:
        """Add a broker whose registration will be removed. Return False if the queue is full."""
        if len(self._waiting) >= self._capacity:
            return False
        self._waiting.append(unregistration)
        self._filled.set()
        return True

    def drain(self) -> list[Unregistration]:
        """Empty the queue and return its content, oldest first."""
        batch = list(self._waiting)
        self._waiting.clear()
        self._filled.clear()
        return batch

    async def next_batch(self) -> list[Unregistration]:
        """Wait until the queue is not empty, and drain it."""
        await self._filled.wait()
        return self.drain()


class BrokerLiveTable:
    def __init__(self, clock: Clock, removals: RemovalQueue) -> None:
        self._clock = clock
        self._removals = removals
        self._rows: dict[BrokerKey, BrokerLive] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: BrokerKey) -> BrokerLive | None:
        return self._rows.get(key)

    def items(self) -> Iterator[tuple[BrokerKey, BrokerLive]]:
        """Iterate over a copy of the rows in the order of registration.

        The caller may change the table during the iteration.
        """
        return iter(list(self._rows.items()))

    def data_version(self, key: BrokerKey) -> DataVersion | None:
        """Return the version of a broker's stored topics, or None for an unknown broker."""
        live = self._rows.get(key)
        return live.data_version if live else None

    # ---- signs of life ----

    def put(self, registration: Registration) -> None:
        """Store the row of a registration.

        The row keeps its watch, unless the broker is about to open another one.
        """
        old = self._rows.get(registration.key)
        watch = old.watch if old else None
        if watch is not None and registration.watch_follows:
            watch.close()
            watch = None
        self._rows[registration.key] = BrokerLive(
            broker_name=registration.broker_name,
            broker_id=registration.broker_id,
            last_update_timestamp_ms=self._clock.now_ms(),
            last_sign_ms=self._clock.monotonic_ms(),
            heartbeat_timeout_ms=registration.heartbeat_timeout_ms,
            data_version=registration.data_version,
            ha_server_address=registration.ha_server_address,
            watch=watch,
            process=registration.process,
        )

    def holder_of(self, registration: Registration) -> tuple[str, BrokerProcess] | None:
        """Return the address and process that hold the number of the broker in `registration`.

        Return None unless the holder is another process at another address with an open stream.
        """
        process = registration.process
        if process is None:
            return None
        for key, live in self._rows.items():
            if (
                live.broker_name == registration.broker_name
                and key.cluster == registration.cluster
                and key.address != registration.address
                and live.watch is not None
                and live.process is not None
                and live.process.number == process.number
                and live.process.process_id != process.process_id
            ):
                return key.address, live.process
        return None

    def refresh(self, key: BrokerKey) -> bool:
        """Record a sign of life. Return False for an unknown broker."""
        live = self._rows.get(key)
        if live is None:
            return False
        self._rows[key] = replace(
            live,
            last_update_timestamp_ms=self._clock.now_ms(),
            last_sign_ms=self._clock.monotonic_ms(),
        )
        return True

    def open_watch(self, key: BrokerKey, broker_name: str, broker_id: int) -> Watch | None:
        """Open a watch, which replaces the previous one. When it ends, the broker is unregistered.

        Return None if no such broker is registered.
        """
        live = self._rows.get(key)
        if live is None or (live.broker_name, live.broker_id) != (broker_name, broker_id):
            return None
        if live.watch is not None:
            live.watch.close()
        watch = Watch()
        self._rows[key] = replace(live, watch=watch)
        self.refresh(key)
        return watch

    # ---- ends of life ----

    def end_watch(self, key: BrokerKey, watch: Watch) -> None:
        """Submit the broker for removal because its stream ended.

        Do nothing if the broker has opened another watch.
        """
        live = self._rows.get(key)
        if live is None or live.watch is not watch:
            return
        # Mark the row as expired. If the queue is full, the next scan submits it.
        overdue_ms = self._clock.monotonic_ms() - live.heartbeat_timeout_ms - 1
        self._rows[key] = replace(live, watch=None, last_sign_ms=overdue_ms)
        self._submit(key, Reason.DISCONNECTED)

    def close_watches(self) -> None:
        """End all streams when the name server stops, without unregistering the brokers."""
        for key, live in self.items():
            if live.watch is not None:
                live.watch.close()
                self._rows[key] = replace(live, watch=None)

    def expire(self) -> int:
        """Submit for removal each broker without a recent sign of life. Return their number."""
        now = self._clock.monotonic_ms()
        return sum(
            self._submit(key, Reason.EXPIRED)
            for key, live in self.items()
            if live.last_sign_ms + live.heartbeat_timeout_ms < now
        )

    def drop(self, key: BrokerKey) -> None:
        """Remove the row of a broker and end its watch."""
        live = self._rows.pop(key, None)
        if live is not None and live.watch is not None:
            live.watch.close()

    def _submit(self, key: BrokerKey, reason: Reason) -> bool:
        live = self._rows[key]
        return self._removals.submit(
            Unregistration(key.cluster, live.broker_name, live.broker_id, key.address, reason, live)
        )
