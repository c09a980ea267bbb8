"""A broker's handlers by RPC name: protobuf in, protobuf out, no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from aerobee_chassis.rpc.services import Method
from aerobee_wire.access.caller import ANYBODY
from aerobee_wire.status import MqError
from support.broker.harness import BrokerHarness


class FakeCall:
    """`Call` of a client at 10.0.0.7:4711."""

    metadata: Mapping[str, str] = {}
    peer = "10.0.0.7:4711"
    certificate_uris: tuple[str, ...] = ()
    is_encrypted = False
    caller = ANYBODY

    def __init__(self) -> None:
        self.written: asyncio.Queue[Any] = asyncio.Queue()

    def time_remaining_s(self) -> float | None:
        return None

    def delay_answer(self, seconds: float) -> None:
        raise AssertionError("no call is signed here")

    async def write(self, message: Any) -> None:
        await self.written.put(message)

    async def write_all(self, messages: Iterable[Any]) -> None:
        for message in messages:
            await self.write(message)


class Handlers:
    def __init__(self, harness: BrokerHarness) -> None:
        self.harness = harness
        self._methods: dict[str, Method] = {
            method.name: method
            for service in harness.broker.services()
            for method in service.methods
        }

    async def __call__(self, name: str, request: Any, call: FakeCall | None = None) -> Any:
        method = self._methods[name]
        # Both are serialized and parsed, as over the wire. A stream ends with None.
        parsed = method.request.FromString(request.SerializeToString())
        answer = await method.handler(parsed, call or FakeCall())
        return answer and type(answer).FromString(answer.SerializeToString())

    async def refused(self, name: str, request: Any) -> MqError:
        with pytest.raises(MqError) as caught:
            await self(name, request)
        return caught.value
