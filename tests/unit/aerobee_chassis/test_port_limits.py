"""Connections of one address above its limit are closed, the newest first."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from aerobee_chassis.per_minute import MAX_KEYS, PerMinute
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc import connections as counter
from aerobee_chassis.rpc.connections import AcceptedConnections, Connections, ProcessSockets
from support.clock.manual_clock import ManualClock
from support.clock.polling import until_sync


class Sockets:
    """`hosts` has the host of each descriptor. An inode is a descriptor plus `reused`."""

    def __init__(self) -> None:
        self.hosts: dict[int, str | None] = {}
        self.reused: dict[int, int] = {}

    def open(self) -> Iterator[tuple[int, int]]:
        for descriptor in self.hosts:
            yield descriptor, descriptor + self.reused.get(descriptor, 0)

    def peer(self, descriptor: int, port: int) -> str | None:
        assert port == 9876
        return self.hosts[descriptor]

    def hang_up(self, descriptor: int) -> None:
        del self.hosts[descriptor]


class Slow(Sockets):
    """Sockets that their owner closes only later."""

    def hang_up(self, descriptor: int) -> None:
        pass


def watched(sockets: Sockets, limit: int) -> tuple[Connections, PortLimits]:
    limits = PortLimits(connections_per_address=limit)
    sockets.open = lambda: iter(list(Sockets.open(sockets)))  # type: ignore[method-assign]
    return Connections(9876, limits, sockets), limits


def test_newest_connections_above_the_limit_of_an_address_are_closed() -> None:
    sockets = Sockets()
    connections, limits = watched(sockets, 2)
    sockets.hosts = {3: None, 4: "10.0.0.1", 5: "10.0.0.2"}
    assert connections.look() == {}
    sockets.hosts |= {6: "10.0.0.1", 7: "10.0.0.1", 8: "10.0.0.1"}
    assert connections.look() == {"10.0.0.1": 2}
    assert sockets.hosts == {3: None, 4: "10.0.0.1", 5: "10.0.0.2", 6: "10.0.0.1"}
    assert (limits.counts.open, limits.counts.refused) == (3, 2)
    del sockets.hosts[4]
    sockets.hosts[9] = "10.0.0.1"
    assert connections.look() == {}, "another one has ended"


def test_connections_are_counted_again_after_a_look_without_a_free_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOOK_S", "NO_DESCRIPTOR_PAUSE_S"):
        monkeypatch.setattr(counter, name, 0.001)
    sockets, failures = Sockets(), [OSError(errno.EMFILE, "Too many open files")]
    connections, limits = watched(sockets, 2)

    def opened() -> Iterator[tuple[int, int]]:
        if failures:
            raise failures.pop()
        return Sockets.open(sockets)

    sockets.open = opened  # type: ignore[method-assign]
    sockets.hosts = {4: "10.0.0.1"}
    asyncio.run(connections.start())
    until_sync(lambda: limits.counts.open == 1, "a second look")
    asyncio.run(connections.stop())


def test_looks_that_wait_for_a_core_are_not_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        """The clock of a machine on which each look takes a minute."""

        passed_ms = itertools.count(0, 60_000)

        def monotonic_ms(self) -> int:
            return next(self.passed_ms)

    monkeypatch.setattr(counter, "LOOK_S", 0.001)
    monkeypatch.setattr(counter, "SystemClock", Busy)
    sockets = Sockets()
    connections, limits = watched(sockets, 2)
    asyncio.run(connections.start())
    sockets.hosts = {3: "10.0.0.1"}
    until_sync(lambda: limits.counts.open == 1, "a look")
    sockets.hosts = {3: "10.0.0.1", 4: "10.0.0.1"}
    until_sync(lambda: limits.counts.open == 2, "another look")
    asyncio.run(connections.stop())


def test_descriptor_that_is_not_a_socket_any_more_leaves_no_copy() -> None:
    """Another thread closed the connection, and opened a file."""
    ends = os.pipe()
    before = len(list(Path(counter.DESCRIPTORS).iterdir()))
    sockets = ProcessSockets()
    for _ in range(9):
        assert sockets.peer(ends[0], 9876) is None
        sockets.hang_up(ends[0])
    after = len(list(Path(counter.DESCRIPTORS).iterdir()))
    for end in ends:
        os.close(end)
    assert after == before


def test_descriptor_that_was_closed_and_opened_between_two_looks_is_another_connection() -> None:
    sockets = Sockets()
    connections, limits = watched(sockets, 1)
    sockets.hosts = {4: "10.0.0.1"}
    connections.look()
    sockets.hosts, sockets.reused = {4: "10.0.0.2"}, {4: 100}
    assert connections.look() == {}
    sockets.hosts[5] = "10.0.0.1"
    assert connections.look() == {}
    assert limits.counts.open == 2


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
        assert counts.admit("10.0.0.2") and counts.admit("")
        assert not counts.admit("10.0.0.3") and not counts.admit(""), "four in total"
        assert (limits.counts.open, limits.counts.refused) == (3, 2)
        counts.release("10.0.0.1")
        assert counts.admit("10.0.0.1") and not counts.admit("10.0.0.1")
        clock.advance(60_000)
        counts.release("")
        assert not counts.admit("10.0.0.1")
    assert [line["addresses"] for line in logs] == [{"10.0.0.1": 1}, {"10.0.0.1": 2}]
    for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        counts.release(host)
    assert limits.counts.open == 0 and not counts._open
