"""Refusals of a test: the next calls of one RPC, and no others."""

from __future__ import annotations

from typing import cast

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.services import Method, Service
from aerobee_suite.control.refusals import Refusals
from aerobee_wire.status import Code
from support.codes import raises_code

NO_CALL = cast(Call, None)


async def check(request: HealthCheckRequest, call: Call) -> HealthCheckResponse:
    return HealthCheckResponse()


def guarded(refusals: Refusals) -> Method:
    method = Method("Check", check, HealthCheckRequest, server_streams=False, client_streams=False)
    ((guarded,),) = [each.methods for each in refusals.guard([Service("Health", (method,))])]
    return guarded


async def test_so_many_calls_fail_with_the_code() -> None:
    refusals = Refusals()
    method = guarded(refusals)
    refusals.refuse("Check", Code.FLOW_CONTROL, 2)
    again = guarded(refusals)  # of a broker that was started again
    for each in (method, again):
        with raises_code(Code.FLOW_CONTROL):
            await each.handler(HealthCheckRequest(), NO_CALL)
    assert await method.handler(HealthCheckRequest(), NO_CALL) == HealthCheckResponse()


async def test_zero_times_takes_refusals_back() -> None:
    refusals = Refusals()
    method = guarded(refusals)
    refusals.refuse("Check", Code.FLOW_CONTROL, 100)
    refusals.refuse("Check", Code.FLOW_CONTROL, 0)
    assert await method.handler(HealthCheckRequest(), NO_CALL) == HealthCheckResponse()


@pytest.mark.parametrize("name", ["Chekc", "", "/Health/Check"])
def test_an_rpc_that_there_is_not_is_refused(name: str) -> None:
    refusals = Refusals()
    guarded(refusals)
    with raises_code(Code.INVALID_PARAMETER):
        refusals.refuse(name, Code.FLOW_CONTROL, 1)
