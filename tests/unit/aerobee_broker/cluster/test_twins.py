"""A process whose number another one has: it stops if that lives and came first, else it waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2

from aerobee_broker.cluster.identity import Identity
from aerobee_broker.cluster.twins import PATIENCE_MS, BrokerIdInUse, Holder, Twins
from aerobee_chassis.rpc.caller import Caller, Rpc
from aerobee_wire.status import Code, MqError
from support.clock.manual_clock import ManualClock

IDENTITY = Identity("c", "broker-a", 0, "10.0.0.2:10911", "10.0.0.2:10911", "0", 5_000, number=3)
FIRST = Holder("10.0.0.1:10911", "0123456789abcdef", 4_000)
LATER = replace(FIRST, start_timestamp_ms=6_000)


class Other(Caller):
    """The other process. `answer`: its broker name, or the error that a call ends with."""

    def __init__(self, answer: str | Code = "broker-a") -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def call(self, address: str, rpc: Rpc[Any], request: Any, *, timeout_s: float) -> Any:
        self.asked.append(address)
        if isinstance(self.answer, Code):
            raise MqError(self.answer, "no")
        return admin_pb2.GetBrokerStatusResponse(broker_name=self.answer)

    async def close(self) -> None: ...


class Process:
    def __init__(self, answer: str | Code = "broker-a") -> None:
        self.clock = ManualClock()
        self.other = Other(answer)
        self.stopped: list[BrokerIdInUse] = []
        self.twins = Twins(IDENTITY, self.clock, self.other, self.stopped.append)

    async def rejected_for(self, ms: int, holder: Holder = FIRST, namesrv: str = "n1") -> None:
        for _ in range(0, ms, 1_000):
            await self.twins.rejected(namesrv, holder)
            self.clock.advance(1_000)
        await self.twins.rejected(namesrv, holder)


@pytest.mark.parametrize("answer", ["broker-a", Code.SERVICE_NOT_AVAILABLE])
async def test_newcomer_stops_when_the_other_one_answers(answer: str | Code) -> None:
    """A replica that is no master answers with an error."""
    process = Process(answer)
    await process.rejected_for(PATIENCE_MS - 1_000)
    assert not process.stopped and not process.other.asked
    await process.rejected_for(1_000)
    assert process.stopped
    message = process.stopped[0].message
    assert FIRST.address in message and FIRST.store_id in message and "brokerId 3" in message
    assert set(process.other.asked) == {FIRST.address}


@pytest.mark.parametrize("answer", [Code.BROKER_UNREACHABLE, "broker-b"])
async def test_newcomer_waits_for_one_whose_machine_is_lost(answer: str | Code) -> None:
    """Its stream looks open until the name server notices; another may have its address by now."""
    process = Process(answer)
    await process.rejected_for(10 * PATIENCE_MS)
    assert not process.stopped
    process.twins.registered("n1")


@pytest.mark.parametrize("namesrv", ["n1", "n2"])
async def test_process_that_was_registered_stops_for_an_earlier_one_alone(namesrv: str) -> None:
    """Both may have registered in one moment, and then neither may stay for good."""
    process = Process()
    process.twins.registered(namesrv)
    await process.rejected_for(3 * PATIENCE_MS, LATER)
    assert not process.stopped
    await process.rejected_for(0, FIRST)
    assert process.stopped


async def test_each_name_server_is_waited_for_from_its_first_rejection() -> None:
    process = Process()
    await process.rejected_for(PATIENCE_MS - 1_000)
    process.clock.advance(PATIENCE_MS)
    await process.rejected_for(0, namesrv="n2")
    assert not process.stopped
