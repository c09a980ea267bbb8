"""Which ranges are known to be damaged."""

from __future__ import annotations

from pathlib import Path

from aerobee_broker.store.damage import DamagedRange, DamageRegister, ignore_event

FILE = Path("log")


def register(*ranges: tuple[int, int]) -> DamageRegister:
    found = DamageRegister(ignore_event)
    for begin, end in ranges:
        found.report_range(FILE, DamagedRange(begin, end), "bad")
    return found


def test_ranges_are_kept_in_order_and_joined_where_they_overlap() -> None:
    assert register((50, 60), (10, 20), (30, 40)).ranges == [(10, 20), (30, 40), (50, 60)]
    assert register((50, 60), (10, 20), (15, 55)).ranges == [(10, 60)]
    assert register((10, 20), (20, 30)).ranges == [(10, 20), (20, 30)]


def test_repaired_part_is_taken_out() -> None:
    found = register((10, 20), (30, 60))
    found.clear(DamagedRange(10, 20))
    assert found.ranges == [(30, 60)]
    found.clear(DamagedRange(40, 50))
    assert found.ranges == [(30, 40), (50, 60)]
    assert found.damaged_bytes == 20


def test_what_is_cut_or_expired_is_damaged_no_longer() -> None:
    found = register((10, 20), (30, 60))
    found.end_at(40)
    assert found.ranges == [(10, 20), (30, 40)]
    found.begin_at(15)
    assert found.ranges == [(15, 20), (30, 40)]


def test_damage_that_comes_back_is_reported_again() -> None:
    found = register((10, 20))
    found.report(FILE, 10, "bad")
    assert found.count == 1
    found.clear(DamagedRange(10, 20))
    found.report(FILE, 10, "bad")
    assert found.count == 2
    assert list(found.suspects) == [10]


def repairable(*ranges: tuple[int, int]) -> DamageRegister:
    found = DamageRegister(ignore_event, repairable=True)
    for begin, end in ranges:
        found.report_range(FILE, DamagedRange(begin, end), "bad")
    return found


def waits(found: DamageRegister) -> bool:
    return found.is_pending


def test_damage_may_be_repaired_until_it_is_given_up_or_whole() -> None:
    found = repairable((10, 20), (30, 40))
    assert [at for at in (9, 10, 19, 20, 35) if found.may_be_repaired(at)] == [10, 19, 35]
    found.give_up([DamagedRange(30, 40)])
    assert waits(found) and not found.may_be_repaired(35)
    assert found.may_be_repaired_before(25) and not found.may_be_repaired_before(10)
    found.clear(DamagedRange(10, 20))
    assert found.ranges == [(30, 40)] and not waits(found)
    found.report_range(FILE, DamagedRange(35, 50), "bad")
    assert found.ranges == [(30, 50)] and found.may_be_repaired(35), "it is another range now"
    assert not register((10, 20)).is_pending


def test_a_suspect_whose_log_is_whole_does_not_return() -> None:
    """Although other damage makes the scrub clear what it has read."""
    found = repairable((100, 200))
    found.give_up(found.ranges)
    found.report(FILE, 10, "the unit is bad")
    assert found.may_be_repaired(10) and waits(found)
    found.clear_range(0, 50)
    found.checked(10)
    found.report(FILE, 10, "the unit is bad")
    assert not found.may_be_repaired(10) and not waits(found)
