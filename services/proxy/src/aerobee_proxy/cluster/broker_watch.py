"""Receive news of new masters, and of brokers that are back, from every name server.

Routes are still refreshed as well: if no stream is open, a route is at most 20 s old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import structlog
from aerobee.namesrv.v1.namesrv_pb2 import BrokerMembers, WatchBrokersRequest

from aerobee_cluster.transport import Transport
from aerobee_proxy.cluster.availability import BrokerAvailability
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_wire.rpcs import WATCH_BROKERS
from aerobee_wire.status import MqError

FIRST_BACK_OFF_S = 0.5
LONGEST_BACK_OFF_S = 10.0


class BrokerWatch:
    def __init__(
        self,
        transport: Transport,
        namesrvs: Sequence[str],
        route_cache: RouteCache,
        availability: BrokerAvailability,
    ) -> None:
        self._transport = transport
        self._namesrvs = namesrvs
        self._route_cache = route_cache
        self._availability = availability

    async def run(self) -> None:
        """Watch all name servers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for namesrv in self._namesrvs:
                group.create_task(self._follow(namesrv))

    async def _follow(self, namesrv: str) -> None:
        back_off_s, lost = FIRST_BACK_OFF_S, False
        while True:
            reason = "it ended the stream"
            try:
                changes = self._transport.stream(namesrv, WATCH_BROKERS, WatchBrokersRequest())
                async with aclosing(changes):
                    async for change in changes:
                        back_off_s, lost = FIRST_BACK_OFF_S, False
                        for members in change.brokers:
                            await self._take(members)
            except MqError as error:
                reason = error.message
            if not lost:
                structlog.get_logger().info("broker_watch_lost", namesrv=namesrv, reason=reason)
            lost = True
            await asyncio.sleep(back_off_s)
            back_off_s = min(2 * back_off_s, LONGEST_BACK_OFF_S)

    async def _take(self, members: BrokerMembers) -> None:
        name = members.broker_name
        was_gone = self._route_cache.is_gone(name)
        former = self._route_cache.learn(members)
        if former is None:
            if was_gone and not self._route_cache.is_gone(name):
                self._availability.back(name)
            return
        structlog.get_logger().info(
            "master_moved",
            broker=name,
            epoch=members.epoch,
            former=former,
            address=members.addresses[0],
        )
        # Calls under way there may hang, or be answered by a master that was deposed.
        await self._transport.drop(former)
        self._availability.back(name)
