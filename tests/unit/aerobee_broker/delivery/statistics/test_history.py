"""The rings of seconds, minutes and hours, without a clock."""

from __future__ import annotations

from math import isnan, nan

from aerobee_broker.delivery.statistics.history import (
    HOURS,
    MINUTES,
    SECONDS,
    History,
    Ring,
    Rollup,
)

MEAN, LAST = [Rollup.MEAN], [Rollup.LAST]


def known(history: History, ring: Ring, figure: int = 0) -> list[float]:
    return [value for value in history.values(figure, ring) if not isnan(value)]


def recorded(seconds: range, rollups: list[Rollup] = MEAN) -> History:
    """Each second has its own number as value."""
    history = History(rollups)
    for second in seconds:
        history.record(second, [second] * len(rollups))
    return history


def test_a_history_without_records_is_unknown() -> None:
    history = History(MEAN)
    assert [len(history.values(0, ring)) for ring in (SECONDS, MINUTES, HOURS)] == [60, 120, 48]
    assert not any(known(history, ring) for ring in (SECONDS, MINUTES, HOURS))
    assert history.rate(0) is None


def test_the_ring_of_seconds_has_the_last_60() -> None:
    assert known(recorded(range(7, 10)), SECONDS) == [7, 8, 9]
    assert known(recorded(range(200)), SECONDS) == list(range(140, 200))


def test_a_minute_is_the_mean_of_its_seconds_when_it_has_ended() -> None:
    assert known(recorded(range(119)), MINUTES) == [29.5]
    assert known(recorded(range(120)), MINUTES) == [29.5, 89.5]
    # One of which 20 s are known.
    assert known(recorded(range(40, 60)), MINUTES) == [49.5]


def test_an_hour_is_the_mean_of_its_minutes() -> None:
    history = recorded(range(3 * 3_600))
    assert known(history, HOURS) == [1_799.5, 5_399.5, 8_999.5]
    assert len(known(history, MINUTES)) == 120


def test_a_level_is_summarized_by_its_last_value() -> None:
    history = recorded(range(3_600), LAST)
    assert known(history, MINUTES)[:2] == [59, 119]
    assert known(history, HOURS) == [3_599]


def test_figures_do_not_mix() -> None:
    history = recorded(range(120), [Rollup.MEAN, Rollup.LAST])
    assert (known(history, MINUTES, 0), known(history, MINUTES, 1)) == ([29.5, 89.5], [59, 119])


def test_seconds_without_a_record_get_the_mean_of_the_time() -> None:
    history = History(MEAN)
    history.record(1, [5])
    history.record(4, [2])
    assert known(history, SECONDS) == [5, 2, 2, 2]
    history.record(3, [9])
    assert known(history, SECONDS) == [5, 2, 2, 2]


def test_nothing_is_known_before_a_long_gap() -> None:
    history = recorded(range(7_200))
    history.record(7_200 + 61, [3])
    assert known(history, SECONDS) == [3]
    assert not known(history, MINUTES) and not known(history, HOURS)


def test_a_value_that_does_not_change_stays_known() -> None:
    history = History(MEAN)
    for second in range(7_200):
        history.record(second, [4])
    assert history.still_seconds == 7_199
    assert known(history, SECONDS) == [4] * 60
    assert known(history, MINUTES) == [4] * 120
    assert known(history, HOURS) == [4, 4]
    history.record(7_200, [5])
    assert history.still_seconds == 0
    assert known(history, SECONDS) == [4] * 59 + [5]


def test_an_unknown_value_is_not_a_part_of_a_mean() -> None:
    history = History(MEAN)
    history.record(0, [nan])
    for second in range(1, 60):
        history.record(second, [6])
    assert known(history, MINUTES) == [6]


def test_the_rate_is_the_mean_of_ten_seconds() -> None:
    assert recorded(range(3)).rate(0) == 1
    assert recorded(range(100)).rate(0) == 94.5


def test_a_subject_was_idle_before_its_first_record() -> None:
    history = History([Rollup.MEAN, Rollup.LAST])
    history.assume_idle(30, 7_258)
    history.record(7_259, [120, 3])
    assert known(history, SECONDS) == [0] * 59 + [120]
    assert known(history, MINUTES) == [0] * 119 + [2]
    assert known(history, HOURS) == [0, 0]
    assert (known(history, SECONDS, 1), known(history, MINUTES, 1)) == ([3], [3])


def test_a_figure_may_be_given() -> None:
    history = recorded(range(59), [Rollup.GIVEN])
    history.record(59, [7])
    assert known(history, SECONDS)[-1:] == [7] and not known(history, MINUTES)
    history.give(0, MINUTES, 59, 5)
    assert known(history, MINUTES) == [5]
    assert history.latest == [7]
