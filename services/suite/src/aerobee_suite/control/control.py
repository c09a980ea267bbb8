"""Connect the faults and the virtual time of a suite to its services, for tests.

The RPCs of SuiteService are GetSuite, Advance, Settle, KillBroker, RestartBroker and Refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from aerobee.suite.v1 import suite_pb2 as pb

from aerobee_chassis.errors import StartError
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.services import Adapt, Service, bind
from aerobee_proxy.app import ProxyApp
from aerobee_suite.broker_runner import BrokerRunner
from aerobee_suite.control.refusals import Refusals
from aerobee_suite.control.settlement import Settlement
from aerobee_suite.control.virtual_time import TimeTravel, VirtualClock, VirtualTimeLoop
from aerobee_suite.options import BROKER, NAMESRV, PROXY
from aerobee_wire.status import Code, MqError, invalid_parameter


class SuiteRpcs:
    """The handlers of SuiteService. `addresses`: name of a service → "host:port"."""

    def __init__(
        self,
        addresses: Callable[[], Mapping[str, str]],
        runner: BrokerRunner,
        refusals: Refusals,
        settlement: Settlement,
        time_travel: TimeTravel,
    ) -> None:
        self._addresses = addresses
        self._runner = runner
        self._refusals = refusals
        self._settlement = settlement
        self._time_travel = time_travel

    async def get_suite(self, request: pb.GetSuiteRequest, call: Call) -> pb.GetSuiteResponse:
        found = self._addresses()
        return pb.GetSuiteResponse(
            namesrv=found[NAMESRV],
            broker=found[BROKER],
            proxy=found.get(PROXY, ""),
            now_timestamp_ms=self._time_travel.clock.now_ms(),
        )

    async def advance(self, request: pb.AdvanceRequest, call: Call) -> pb.AdvanceResponse:
        steps = await self._time_travel.advance(
            request.duration_ms,
            settle=not request.without_settling,
            settle_timeout_ms=request.settle_timeout_ms,
        )
        clock = self._time_travel.clock
        return pb.AdvanceResponse(
            now_timestamp_ms=clock.now_ms(), offset_ms=clock.offset_ms, steps=steps
        )

    async def settle(self, request: pb.SettleRequest, call: Call) -> pb.SettleResponse:
        await self._settlement.wait(request.consumer_group, request.timeout_ms)
        return pb.SettleResponse()

    async def kill_broker(self, request: pb.KillBrokerRequest, call: Call) -> pb.KillBrokerResponse:
        await self._runner.kill()
        return pb.KillBrokerResponse()

    async def restart_broker(
        self, request: pb.RestartBrokerRequest, call: Call
    ) -> pb.RestartBrokerResponse:
        try:
            await self._runner.stop()
            await self._runner.start()
        except StartError as error:
            raise MqError(Code.SERVICE_NOT_AVAILABLE, str(error)) from None
        return pb.RestartBrokerResponse()

    async def refuse(self, request: pb.RefuseRequest, call: Call) -> pb.RefuseResponse:
        if request.code not in {code.value for code in Code} or request.times < 0:
            raise invalid_parameter(
                f"cannot refuse with code {request.code}, {request.times} times: give a response "
                "code, and 0 or more times",
                about="code" if request.times >= 0 else "times",
            )
        self._refusals.refuse(request.rpc, Code(request.code), request.times)
        return pb.RefuseResponse()


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
            pb.DESCRIPTOR.services_by_name["SuiteService"],
            SuiteRpcs(addresses, runner, self.refusals, settlement, time_travel),
        )

        def adapt(services: Sequence[Service]) -> list[Service]:
            return [*self.refusals.guard(services), ours]

        return adapt
