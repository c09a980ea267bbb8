"""A call of grpc.aio whose caller leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from aerobee_chassis.rpc.aio.listener import AioCall
from aerobee_chassis.rpc.in_flight import InFlight


class Left:
    """The context of a call whose caller has left, before gRPC cancels the handler."""

    async def write(self, _data: bytes) -> None:
        raise grpc.aio.InternalError("Failed execute_batch")


async def test_write_to_a_caller_that_has_left_cancels_the_handler() -> None:
    context: Any = Left()
    in_flight = InFlight()
    call = AioCall(context, in_flight, streams=True)
    with pytest.raises(asyncio.CancelledError):
        await call.write(b"notice")
    assert in_flight.answers == 0
