"""Calls that several callers share: one at a time for each key."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from aerobee_cluster.single_flight import STALE_WAIT_S, SingleFlight
from support.clock.manual_clock import ManualClock


class Peer:
    """Answers calls, by their key, once `gate` is open."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gate = asyncio.Event()

    async def __call__(self, key: str) -> str:
        self.asked.append(key)
        await self.gate.wait()
        if key == "poison":
            raise ConnectionError("gone")
        return key.upper()


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def flights() -> SingleFlight[str]:
    return SingleFlight(ManualClock())


async def test_callers_of_one_key_share_a_call(peer: Peer, flights: SingleFlight[str]) -> None:
    callers = [asyncio.create_task(flights.do(key, partial(peer, key))) for key in "aba"]
    await asyncio.sleep(0.1)
    assert (peer.asked, len(flights)) == (["a", "b"], 2)
    peer.gate.set()
    assert await asyncio.gather(*callers) == ["A", "B", "A"]
    assert len(flights) == 0
    assert await flights.do("a", partial(peer, "a")) == "A"
    assert peer.asked == ["a", "b", "a"], "a later caller starts another call"


async def test_every_caller_gets_the_failure(peer: Peer, flights: SingleFlight[str]) -> None:
    peer.gate.set()
    callers = (flights.do("poison", partial(peer, "poison")) for _ in range(2))
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(outcome, ConnectionError) for outcome in outcomes)
    assert peer.asked == ["poison"]


async def test_a_cancelled_caller_leaves_the_call_to_others(
    peer: Peer, flights: SingleFlight[str]
) -> None:
    gone, stays = (asyncio.create_task(flights.do("a", partial(peer, "a"))) for _ in range(2))
    await asyncio.sleep(0.1)
    gone.cancel()
    peer.gate.set()
    assert await stays == "A"


async def test_a_failure_without_callers_is_not_reported_as_unretrieved(
    peer: Peer, flights: SingleFlight[str]
) -> None:
    caller = asyncio.create_task(flights.do("poison", partial(peer, "poison")))
    await asyncio.sleep(0.1)
    caller.cancel()
    peer.gate.set()
    await asyncio.sleep(0.1)
    assert len(flights) == 0


async def test_a_caller_with_a_stale_value_waits_a_little(
    peer: Peer, flights: SingleFlight[str]
) -> None:
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await flights.do("a", partial(peer, "a"), has_stale=True)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(STALE_WAIT_S)
    peer.gate.set()
    assert await flights.do("a", partial(peer, "a"), has_stale=True) == "A"
    assert peer.asked == ["a"], "the call went on without its caller"


async def test_close_cancels_the_calls(peer: Peer, flights: SingleFlight[str]) -> None:
    callers = [asyncio.create_task(flights.do(key, partial(peer, key))) for key in "ab"]
    await asyncio.sleep(0.1)
    await flights.close()
    assert len(flights) == 0
    for caller in callers:
        with pytest.raises(asyncio.CancelledError):
            await caller
