"""Handlers that change while a server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from grpc_health.v1 import health_pb2

from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.services import Service, bind
from aerobee_chassis.rpc.switch import Switch

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
NO_CALL = cast(Call, None)


class Refused(Exception):
    pass


class Answers:
    """Health, whose check waits until it may answer."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.may_answer = asyncio.Event()
        self.cancelled = 0
        if at_once:
            self.may_answer.set()

    async def check(self, request: Any, call: Call) -> health_pb2.HealthCheckResponse:
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return health_pb2.HealthCheckResponse()

    async def list(self, request: Any, call: Call) -> None:
        pass

    async def watch(self, request: Any, call: Call) -> None:
        pass


def switch() -> Switch:
    return Switch([HEALTH], Refused)


def check(switched: Switch) -> asyncio.Future[Any]:
    """As a server calls it."""
    [service] = switched.services
    [method] = [method for method in service.methods if method.name == "Check"]
    handled: Coroutine[Any, Any, Any] = cast(Any, method.handler(None, NO_CALL))
    return asyncio.ensure_future(handled)


def health(answers: Answers) -> list[Service]:
    return [bind(HEALTH, answers)]


def test_it_has_every_method_of_its_descriptors() -> None:
    [service] = switch().services
    assert service.name == HEALTH.full_name
    found = [(method.name, method.server_streams) for method in service.methods]
    assert found == [(method.name, method.server_streaming) for method in HEALTH.methods]


async def test_what_no_handler_is_there_for_is_refused() -> None:
    switched = switch()
    with pytest.raises(Refused):
        await check(switched)
    switched.serve(health(Answers()))
    assert isinstance(await check(switched), health_pb2.HealthCheckResponse)


async def test_calls_under_way_end_with_their_role() -> None:
    switched, answers = switch(), Answers(at_once=False)
    switched.serve(health(answers))
    calls = [check(switched) for _ in range(2)]
    await asyncio.sleep(0)

    await switched.end_calls()

    assert [call.cancelled() for call in calls] == [True, True] and answers.cancelled == 2
    with pytest.raises(Refused):
        await check(switched)


async def test_calls_of_what_goes_on_do_not_end() -> None:
    switched, answers = switch(), Answers(at_once=False)
    switched.serve(health(answers))
    call = check(switched)
    await asyncio.sleep(0)

    await switched.end_calls(but=health(answers))

    answers.may_answer.set()
    assert isinstance(await call, health_pb2.HealthCheckResponse)
    assert isinstance(await check(switched), health_pb2.HealthCheckResponse)
