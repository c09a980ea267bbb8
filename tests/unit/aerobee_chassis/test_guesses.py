"""Wrong signatures are answered late after some failures of an address, and others are not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import structlog

from aerobee_chassis.rpc import guesses
from aerobee_chassis.rpc.guesses import DELAY_S, FAILURES, WINDOW_S, Guesses, place_of
from aerobee_wire.access import throttle
from support.clock.manual_clock import ManualClock


@dataclass
class GuessingCall:
    peer: str
    delays: list[float] = field(default_factory=list)

    def delay_answer(self, seconds: float) -> None:
        self.delays.append(seconds)


def fail(found: Guesses, peer: str, times: int = 1) -> list[float]:
    """Return the delays of this many failed calls from an address."""
    calls = [GuessingCall(peer) for _ in range(times)]
    for call in calls:
        found.failed(call)
    return [delay for call in calls for delay in call.delays]


def test_failures_of_an_address_are_delayed_until_its_window_ends() -> None:
    clock = ManualClock()
    found = Guesses(clock)
    with structlog.testing.capture_logs() as logs:
        assert not fail(found, "10.0.0.1:1", FAILURES)
        assert fail(found, "10.0.0.1:2", 3) == [DELAY_S] * 3
        assert not fail(found, "10.0.0.2:1")
    assert [(line["event"], line["address"]) for line in logs] == [("answers_delayed", "10.0.0.1")]
    clock.advance(round(WINDOW_S * 1_000))
    assert not fail(found, "10.0.0.1:3")


def test_delayed_calls_and_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "MOST_DELAYED", 2)
    monkeypatch.setattr(throttle, "MAX_KEYS", 3)
    clock = ManualClock()
    found = Guesses(clock)
    fail(found, "10.0.0.1:1", FAILURES)
    assert fail(found, "10.0.0.1:1", 5) == [DELAY_S] * 2
    clock.advance(round(DELAY_S * 1_000))
    assert fail(found, "10.0.0.1:1") == [DELAY_S]
    for host in range(10):
        fail(found, f"10.0.1.{host}:1")
    assert not fail(found, "10.0.0.1:1"), "the address that failed longest ago is forgotten"


@pytest.mark.parametrize(
    ("peer", "place"),
    [
        ("10.0.0.1:40000", "10.0.0.1"),
        ("[::ffff:10.0.0.1]:40000", "10.0.0.1"),
        ("[2001:db8::1]:40000", "2001:0db8:0000:0000::/64"),
        ("[2001:db8::2:0:0:1]:40000", "2001:0db8:0000:0000::/64"),
        ("[fe80::1%eth0]:40000", "fe80:0000:0000:0000::/64"),
        ("unix", ""),
    ],
)
def test_place_of_a_peer(peer: str, place: str) -> None:
    assert place_of(peer) == place
