"""Connect the faults and the virtual time of a suite to its services, for tests.

The RPCs of SuiteService are GetSuite, Advance, Settle, KillBroker, RestartBroker and Refuse.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aerobee.suite.v1 import suite_pb2 as pb
from google.protobuf.message import Message

from aerobee_chassis.errors import StartError
from aerobee_chassis.rpc.call import Call, Handler
from aerobee_chassis.rpc.services import Adapt, Method, Service, bind
from aerobee_proxy.app import ProxyApp
from aerobee_suite.broker_runner import BrokerRunner
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
            raise TypeError("the time of this loop cannot be moved: run on a VirtualTimeLoop")
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


# ---- refusals ----
#
# Let a test make calls fail: the next calls of an RPC return a response code.


@dataclass(slots=True, eq=False)
class Refusals:
    """The refusals of each RPC.

    An RPC is named without its service, for example "Send". RPCs of different services with the
    same name share their refusals.
    """

    _codes: dict[str, deque[Code]] = field(default_factory=dict)

    def refuse(self, rpc: str, code: Code, times: int) -> None:
        """Let the next `times` calls of an RPC fail with `code`, instead of earlier refusals.

        Raises MqError with the code INVALID_PARAMETER for an unknown RPC.
        """
        if rpc not in self._codes:
            nearest = difflib.get_close_matches(rpc, self._codes, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {sorted(self._codes)}"
            raise invalid_parameter(f"there is no RPC {rpc!r}: {hint}", about="rpc")
        self._codes[rpc] = deque([code] * times)

    def guard(self, services: Sequence[Service]) -> list[Service]:
        """Return the services with handlers that check for refusals first."""
        return [
            replace(service, methods=tuple(map(self._guarded, service.methods)))
            for service in services
        ]

    def _guarded(self, method: Method) -> Method:
        # A restarted broker has the same RPCs, so refusals stay in force.
        self._codes.setdefault(method.name, deque())
        return replace(method, handler=_Guarded(method.name, method.handler, self._codes))


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A handler that checks for refusals before it calls the real handler."""

    rpc: str
    handler: Handler
    codes: dict[str, deque[Code]]

    async def __call__(self, request: Any, call: Call, /) -> Message | None:
        if codes := self.codes[self.rpc]:
            code = codes.popleft()
            raise MqError(code, f"a test has {self.rpc} refused with {code.name}", retryable=True)
        return await self.handler(request, call)
