"""What a replica counts: how long flushes wait for others, and how far clocks are apart."""

from __future__ import annotations

from aerobee_broker.replication.in_sync.counts import ReplicaWaits
from aerobee_broker.replication.log.stream import CLOCK_WINDOW_MS, ClockOffset


def test_a_flush_waits_until_what_it_covers_is_confirmed() -> None:
    waits = ReplicaWaits()
    waits.flushed(100, 10)
    waits.flushed(200, 12)
    waits.confirmed(99, 15)
    assert waits.take() == []
    waits.confirmed(100, 17)
    waits.flushed(200, 18)  # the same flush, looked at again
    waits.confirmed(300, 20)
    assert waits.take() == [7, 8]
    waits.confirmed(300, 30)
    assert waits.take() == []


def test_an_offset_of_clocks_is_the_least_delayed_of_some_seconds() -> None:
    """The slave is 700 ms ahead; its reports take 5 to 400 ms."""
    clock = ClockOffset()
    for at_ms, delay_ms in ((0, 400), (1_000, 5), (2_000, 90)):
        assert not clock.note(at_ms + 700, at_ms + delay_ms, at_ms)
    before = clock.ahead_ms
    assert before is None
    assert clock.note(CLOCK_WINDOW_MS + 700, CLOCK_WINDOW_MS + 30, CLOCK_WINDOW_MS)
    assert clock.ahead_ms == 695
    # It was set right; the next window knows nothing of the one before.
    assert not clock.note(20_000, 20_010, 20_000)
    assert clock.note(20_000 + CLOCK_WINDOW_MS, 20_020 + CLOCK_WINDOW_MS, 20_000 + CLOCK_WINDOW_MS)
    assert clock.ahead_ms == -10
