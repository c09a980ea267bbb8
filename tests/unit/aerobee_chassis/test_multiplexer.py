"""The age of a stream of calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee_broker.rpc.frames import FRAMES
from aerobee_chassis.rpc.in_flight import InFlight
from aerobee_chassis.rpc.multiplexer import Multiplexer
from aerobee_chassis.rpc.transport import admit_all


async def forever() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield None


def multiplexer(max_age_s: float | None) -> Multiplexer:
    async def run(*_: Any) -> None:
        return None

    return Multiplexer(
        FRAMES,
        [],
        run,
        admit_all,
        refuse=lambda _method, _error: pytest.fail("no call is refused"),
        in_flight=InFlight(),
        max_calls=1,
        max_age_s=max_age_s,
    )


async def test_a_stream_ends_at_its_greatest_age() -> None:
    call: Any = SimpleNamespace(peer="10.0.0.1:5000")
    await asyncio.wait_for(multiplexer(0).multiplex(forever(), call), 60)


async def test_a_caller_that_leaves_cancels_the_stream() -> None:
    call: Any = SimpleNamespace(peer="10.0.0.1:5000")
    serving = asyncio.create_task(multiplexer(None).multiplex(forever(), call))
    await asyncio.sleep(0)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
