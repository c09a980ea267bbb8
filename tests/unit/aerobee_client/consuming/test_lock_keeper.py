"""How long a member relies on the lock of a queue."""

from __future__ import annotations

from aerobee_client.consuming.order.lock_keeper import TRUST_MS, QueueLock
from support.clock.manual_clock import ManualClock

ADDRESS = "10.0.0.11:10911"


def granted(clock: ManualClock, asked_ms: int) -> QueueLock:
    lock = QueueLock(clock)
    lock.renew(ADDRESS, asked_ms, epoch=1, max_reconsume_times=16)
    return lock


def test_a_lock_is_trusted_for_30_s_from_when_it_was_asked_for() -> None:
    clock = ManualClock()
    asked_ms = clock.monotonic_ms()
    clock.advance(4_000)  # until the broker answered
    lock = granted(clock, asked_ms)
    clock.advance(TRUST_MS - 4_001)
    assert lock.is_trusted()
    clock.advance(1)
    assert not lock.is_trusted()


def test_an_answer_that_took_too_long_grants_nothing() -> None:
    clock = ManualClock()
    asked_ms = clock.monotonic_ms()
    clock.advance(TRUST_MS)
    assert not granted(clock, asked_ms).is_trusted()


def test_a_lock_is_not_trusted_after_the_link_broke_until_it_is_granted_anew() -> None:
    clock = ManualClock()
    lock = granted(clock, clock.monotonic_ms())
    renewed: list[bool] = []
    lock.distrust()
    lock.when_renewed(lambda: renewed.append(lock.is_trusted()))
    assert not lock.is_trusted() and not renewed
    for _ in range(2):
        lock.renew(ADDRESS, clock.monotonic_ms(), epoch=2, max_reconsume_times=16)
    assert renewed == [True]
