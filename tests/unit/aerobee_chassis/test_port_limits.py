"""Connections are counted when they are accepted, and events of a key are limited."""

from __future__ import annotations

import structlog

from aerobee_chassis.per_minute import MAX_KEYS, PerMinute
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.connections import AcceptedConnections
from support.clock.manual_clock import ManualClock


def test_events_of_a_key_are_limited_in_each_minute() -> None:
    clock = ManualClock()
    counts = PerMinute(clock, 2)
    assert [counts.count("a"), counts.count("b")] == [0, 0]
    clock.advance(10_000)
    assert [counts.count("a"), counts.count("a"), counts.count("b")] == [0, 50_000, 0]
    clock.advance(50_000)
    assert [counts.count("a"), counts.count("a")] == [0, 10_000]


def test_memory_for_keys_is_bounded() -> None:
    clock = ManualClock()
    counts = PerMinute(clock, 1)
    assert all(counts.count(str(number)) == 0 for number in range(MAX_KEYS))
    assert [counts.count("one"), counts.count("another")] == [0, 60_000], "they share a limit"
    clock.advance(60_000)
    assert [counts.count("one"), counts.count("another")] == [0, 0]


def test_connections_are_counted_when_they_are_accepted() -> None:
    limits = PortLimits(connections=4, connections_per_address=2)
    clock = ManualClock()
    counts = AcceptedConnections(limits, clock.monotonic_ms)
    with structlog.testing.capture_logs() as logs:
        assert [counts.admit("10.0.0.1") for _ in range(4)] == [True, True, False, False]
        assert counts.admit("10.0.0.2") and counts.admit("10.0.0.1", is_limited=False)
        assert not counts.admit("10.0.0.3") and not counts.admit("10.0.0.4", is_limited=False)
        assert (limits.counts.open, limits.counts.refused) == (4, 2), "four in total"
        assert limits.counts.too_many == 2
        counts.release("10.0.0.1")
        counts.release("10.0.0.1")
        assert counts.admit("10.0.0.1") and not counts.admit("10.0.0.1")
        clock.advance(60_000)
        assert not counts.admit("10.0.0.1")
    assert [line["addresses"] for line in logs] == [{"10.0.0.1": 1}, {"10.0.0.1": 3}]
    for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        counts.release(host)
    assert limits.counts.open == 0 and not counts._open
