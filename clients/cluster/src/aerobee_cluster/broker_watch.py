"""Watch the brokers at every name server, and drop connections to masters that were replaced.

Name servers do not share data, so each one is watched through a stream of its own. A stream that
ends is reopened. While no stream is open, a failed call or the next route query finds the new
master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from aerobee.namesrv.v1.namesrv_pb2 import BrokerMembers, WatchBrokersRequest

from aerobee_cluster.name_servers import hold_each
from aerobee_cluster.transport import Transport
from aerobee_wire.backoff import Backoff
from aerobee_wire.rpcs import WATCH_BROKERS
from aerobee_wire.status import MqError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0

# A function that applies a change of a broker. If the address of the master has changed, it returns
# the former address ("" if that was unknown). Otherwise it returns None.
Learn = Callable[[BrokerMembers], str | None]
# Arguments: the broker with its new master, the former address of the master.
OnMoved = Callable[[BrokerMembers, str], None]
# Arguments: the address of the name server, the failure. The failure is None if the name server
# ended the stream.
OnLost = Callable[[str, Exception | None], None]


class BrokerWatch:
    """Watches the brokers through one stream to each name server.

    Args:
        transport: The network.
        namesrvs: The addresses of the name servers.
        learn: Applies each change.
        on_moved: Called when a broker has a new master, after all calls in flight at the former
            master have failed.
        on_lost: Called when a stream ends. If the same name server fails repeatedly, only the
            first MqError is reported; other exceptions are always reported.
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
        await hold_each(self._namesrvs, self._follow, self._transport.drop)

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
            # Calls in flight at the former master may hang, or a deposed master may answer them.
            await self._transport.drop(former)
        self._on_moved(members, former)
