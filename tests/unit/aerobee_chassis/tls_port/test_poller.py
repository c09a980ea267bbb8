"""The poller, with `epoll` and without it."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from aerobee_chassis.tls_port.poller import IN, OUT, Poller

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="not on Linux")


@pytest.fixture(params=["epoll", "poll"])
def poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Poller:
    if request.param == "poll":
        monkeypatch.delattr(select, "epoll")
    return Poller()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_each_ready_descriptor_is_reported(poller: Poller, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    seen: list[bytes] = []

    def read(events: int) -> None:
        assert events & IN
        seen.append(os.read(reading, 100))
        if seen[-1] == b"second":
            poller.stop()
        else:
            poller.wait_for(writing, OUT, lambda events: write(events, b"second"))

    def write(events: int, data: bytes) -> None:
        assert events & OUT
        poller.forget(writing)
        os.write(writing, data)

    poller.wait_for(reading, IN, read)
    poller.wait_for(writing, OUT, lambda events: write(events, b"first"))
    poller.run()
    assert seen == [b"first", b"second"]


def test_interest_can_change_and_end(poller: Poller, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    seen: list[int] = []
    poller.wait_for(writing, IN, seen.append)
    poller.wait_for(writing, OUT, seen.append)
    poller.wait_for(writing, 0, seen.append)
    poller.wait_for(reading, IN, seen.append)
    poller.forget(reading)
    poller.call_later(0.0, poller.stop)
    poller.run()
    assert seen == []


def test_timers_run_in_their_order(poller: Poller) -> None:
    seen: list[int] = []
    for number, delay_s in ((2, 0.0012), (1, 0.0004)):
        poller.call_later(delay_s, lambda number=number: seen.append(number))  # type: ignore[misc]
    poller.call_later(0.002, poller.stop)
    poller.run()
    assert seen == [1, 2]
