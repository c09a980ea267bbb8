"""Receive changes of brokers from every name server, and leave masters that were replaced.

Name servers share nothing, so each has its own stream. A stream that ends is opened again. Routes
are still refreshed as well: without an open stream, a failed call or the next query finds the new
master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from aerobee.namesrv.v1.namesrv_pb2 import BrokerMembers, WatchBrokersRequest

from aerobee_cluster.backoff import Backoff
from aerobee_cluster.transport import Transport
from aerobee_wire.rpcs import WATCH_BROKERS
from aerobee_wire.status import MqError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0

# Applies a change of a broker. Returns the former address of its master if that has changed, ""
# if it was unknown; None if the master is the same.
Learn = Callable[[BrokerMembers], str | None]
# (the broker with its new master, the former address).
OnMoved = Callable[[BrokerMembers, str], None]
# (name server, failure); None: the name server ended the stream.
OnLost = Callable[[str, Exception | None], None]


class BrokerWatch:
    """The streams of all name servers.

    `on_moved` is called when a broker has a new master, after the calls in flight at the former one
    have failed. `on_lost` is called once when a name server stops reporting, and again only after
    it has reported a change; for a failure that is not an MqError, every time.
    """

    def __init__(
        self,
        transport: Transport,
        namesrvs: Sequence[str],
        learn: Learn,
        *,
        on_moved: OnMoved,
        on_lost: OnLost,
    ) -> None:
        self._transport = transport
        self._namesrvs = namesrvs
        self._learn = learn
        self._on_moved = on_moved
        self._on_lost = on_lost

    async def run(self) -> None:
        """Watch all name servers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for namesrv in self._namesrvs:
                group.create_task(self._follow(namesrv), name=f"brokers by {namesrv}")

    async def _follow(self, namesrv: str) -> None:
        backoff, is_lost = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), False
        while True:
            failure: Exception | None = None
            try:
                stream = self._transport.stream(namesrv, WATCH_BROKERS, WatchBrokersRequest())
                async with aclosing(stream) as changes:
                    async for change in changes:
                        backoff.reset()
                        is_lost = False
                        for members in change.brokers:
                            await self._take(members)
            except Exception as error:  # a defect must not end the watch either
                failure = error
            if not is_lost or not isinstance(failure, MqError | None):
                self._on_lost(namesrv, failure)
            is_lost = True
            await asyncio.sleep(backoff.next_s())

    async def _take(self, members: BrokerMembers) -> None:
        former = self._learn(members)
        if former is None:
            return
        if former:
            # Calls in flight there may hang, or be answered by a deposed master.
            await self._transport.drop(former)
        self._on_moved(members, former)
