"""Probe unreachable brokers, so that a producer uses recovered brokers early.

RocketMQ has the same detector. It does not end the isolation of a broker that answered slowly,
because a fast heartbeat does not prove that a slow disk has recovered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_wire import rpcs
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)


class LatencyDetector:
    """Probes the unreachable brokers of one producer every `interval_s` seconds.

    Every `interval_s`, it sends the request of `heartbeat` to each unreachable broker. A broker is
    used again if it answers within `timeout_s` and is in a route.
    """

    def __init__(
        self,
        instance: ClientInstance,
        fault: LatencyFault,
        heartbeat: Callable[[], client_pb2.HeartbeatRequest],
        *,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self._instance = instance
        self._fault = fault
        self._heartbeat = heartbeat
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._task = asyncio.create_task(self._run(), name="latency detector")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                if names := self._fault.unreachable():
                    # the broker may be back at another address
                    await self._instance.routes.refresh_all()
                    await asyncio.gather(*map(self._ask, names))
            except Exception:
                log.exception("unavailable brokers were not probed")

    async def _ask(self, broker_name: str) -> None:
        routes = self._instance.routes
        try:
            address = routes.address_of(broker_name)
            await self._instance.transport.call(
                address, rpcs.HEARTBEAT, self._heartbeat(), timeout_s=self._timeout_s
            )
        except MqError as error:
            log.debug("broker %s is still away: %s", broker_name, error)
            return
        if address in routes.master_addresses():
            log.info("broker %s at %s is back", broker_name, address)
            self._fault.reached(broker_name)
