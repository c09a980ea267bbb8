"""Receive notices of new masters from every name server.

Queries continue as before: without an open stream, a failed call or the next refresh finds the new
master.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.cluster.namesrv import NamesrvClient
from aerobee_client.cluster.route_cache import RouteCache
from aerobee_client.runtime.backoff import Backoff
from aerobee_cluster.transport import Transport
from aerobee_wire.rpcs import WATCH_BROKERS
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0


class BrokerWatch:
    def __init__(self, transport: Transport, namesrv: NamesrvClient, routes: RouteCache) -> None:
        self._transport = transport
        self._addresses = namesrv.addresses
        self._routes = routes

    async def run(self) -> None:
        """Run until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for address in self._addresses:
                group.create_task(self._follow(address), name=f"brokers by {address}")

    async def _follow(self, namesrv: str) -> None:
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                request = namesrv_pb2.WatchBrokersRequest()
                stream = self._transport.stream(namesrv, WATCH_BROKERS, request)
                async with aclosing(stream) as changes:
                    async for change in changes:
                        backoff.reset()
                        for members in change.brokers:
                            await self._take(members)
            except MqError as error:
                log.debug("brokers are not watched at %s: %s", namesrv, error)
            except Exception:
                log.exception("brokers are not watched at %s", namesrv)
            await asyncio.sleep(backoff.next_s())

    async def _take(self, members: namesrv_pb2.BrokerMembers) -> None:
        former = self._routes.learn(members)
        if former is None:
            return
        name, address = members.broker_name, members.addresses[0]
        log.info("the master of %s is now at %s (epoch %d)", name, address, members.epoch)
        if former:
            # Calls in flight there may hang, or be answered by a deposed master.
            await self._transport.drop(former)
