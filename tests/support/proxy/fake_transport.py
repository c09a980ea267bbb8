"""The proxy's `Transport` without sockets: answers by RPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from google.protobuf.message import Message

from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code, MqError


class FakeTransport:
    """`answers`: method → the answer, an exception, or a function of (address, request)."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = answers
        self.dropped: list[str] = []  # addresses
        self.expected: dict[str, str] = {}  # address → broker name
        self.calls: list[tuple[str, str, Any]] = []
        # Clear it to hold every call, until it is set again.
        self.gate = asyncio.Event()
        self.gate.set()

    async def call(
        self, address: str, rpc: Rpc[Any, Any], request: Request, *, timeout_s: float
    ) -> Any:
        self.calls.append((address, rpc.method, request))
        await self.gate.wait()
        answer = self.answers.get(rpc.method)
        if answer is None:
            raise MqError(Code.BROKER_UNREACHABLE, f"nobody answers {rpc.method} at {address}")
        if isinstance(answer, Message):
            return answer
        if isinstance(answer, Exception):
            raise answer
        return answer(address, request)

    async def stream(
        self, address: str, rpc: Rpc[Any, Any], request: Request
    ) -> AsyncGenerator[Any, None]:
        """`answers` has a function of (address, request) that makes an asynchronous iterator."""
        self.calls.append((address, rpc.method, request))
        answer = self.answers.get(rpc.method)
        if answer is None:
            raise MqError(Code.BROKER_UNREACHABLE, f"nobody answers {rpc.method} at {address}")
        async for message in answer(address, request):
            yield message

    def expect(self, address: str, broker_name: str) -> None:
        self.expected[address] = broker_name

    async def drop(self, address: str) -> None:
        self.dropped.append(address)

    async def close(self) -> None:
        self.gate.set()

    def requests(self, rpc: Rpc[Any, Any]) -> list[Any]:
        return [request for _, method, request in self.calls if method == rpc.method]
