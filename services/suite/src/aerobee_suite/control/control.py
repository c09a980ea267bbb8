"""Connect the faults and the virtual time of a suite to its services, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from aerobee.suite.v1 import suite_pb2

from aerobee_chassis.rpc.services import Adapt, Service, bind
from aerobee_proxy.app import ProxyApp
from aerobee_suite.broker_runner import BrokerRunner
from aerobee_suite.control.refusals import Refusals
from aerobee_suite.control.rpc import SuiteRpcs
from aerobee_suite.control.settlement import Settlement
from aerobee_suite.control.time_travel import TimeTravel
from aerobee_suite.control.virtual_time import VirtualClock, VirtualTimeLoop


class Control:
    """Own the faults and the virtual time of a suite. Create it on a VirtualTimeLoop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualTimeLoop):
            raise TypeError("the time of this loop cannot be moved: run on VIRTUAL_LOOPS")
        self.clock = VirtualClock(loop)
        self.refusals = Refusals()

    def services(
        self,
        runner: BrokerRunner,
        addresses: Callable[[], Mapping[str, str]],
        proxy: Callable[[], ProxyApp | None],
    ) -> Adapt:
        """Return a function that adapts the name server's services.

        It adds the SuiteService and a check for refusals.
        """
        settlement = Settlement(runner, proxy)
        time_travel = TimeTravel(self.clock, runner, proxy, settlement)
        ours = bind(
            suite_pb2.DESCRIPTOR.services_by_name["SuiteService"],
            SuiteRpcs(addresses, runner, self.refusals, settlement, time_travel),
        )

        def adapt(services: Sequence[Service]) -> list[Service]:
            return [*self.refusals.guard(services), ours]

        return adapt
