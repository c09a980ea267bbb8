"""Counters that become histories, with a clock of the test."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from math import isnan

import pytest

from aerobee_broker.delivery.statistics.history import HOURS, MINUTES, SECONDS
from aerobee_broker.delivery.statistics.sampler import FIGURES, MAX_FIGURES, Kind, Sampler
from aerobee_broker.metrics import BrokerMetrics, lag_labels
from aerobee_chassis.metrics.series import Registry
from support.clock.manual_clock import ManualClock


@pytest.fixture
def metrics() -> BrokerMetrics:
    return BrokerMetrics(Registry())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def no_lags() -> Iterator[tuple[str, str, int]]:
    return iter(())


def values(sampler: Sampler, kind: Kind, name: str, figure: str) -> list[float]:
    history = sampler.history(kind, name)
    assert history is not None
    found = history.values(FIGURES[kind].index(figure), SECONDS)
    return [value for value in found if not isnan(value)]


async def second(sampler: Sampler, clock: ManualClock, seconds: int = 1) -> None:
    clock.advance(seconds * 1_000)
    await sampler.sample()


async def test_counters_become_rates(metrics: BrokerMetrics, clock: ManualClock) -> None:
    sampler = Sampler(metrics, no_lags, clock)
    await second(sampler, clock)
    metrics.stored("t", 6, 600)
    metrics.delivered("t", "g", 4, 800, redelivered=1)
    metrics.delivered("%RETRY%g", "g", 2, 90)
    metrics.dead_lettered("g", 1)
    await second(sampler, clock)
    await second(sampler, clock)
    assert values(sampler, Kind.TOPIC, "t", "messages_in") == [6, 0]
    assert values(sampler, Kind.TOPIC, "t", "bytes_in") == [600, 0]
    assert values(sampler, Kind.TOPIC, "t", "messages_out") == [4, 0]
    assert values(sampler, Kind.GROUP, "g", "messages_out") == [6, 0]
    assert values(sampler, Kind.GROUP, "g", "bytes_out") == [890, 0]
    assert values(sampler, Kind.GROUP, "g", "redelivered") == [3, 0]
    assert values(sampler, Kind.GROUP, "g", "dead_lettered") == [1, 0]
    assert values(sampler, Kind.BROKER, "", "messages_in") == [6, 0]
    assert values(sampler, Kind.BROKER, "", "messages_out") == [6, 0]
    assert sampler.rate(Kind.TOPIC, "t", "messages_in") == 3
    assert sampler.rate(Kind.TOPIC, "idle", "messages_in") == 0


async def test_rates_are_unknown_until_a_second_has_passed(
    metrics: BrokerMetrics, clock: ManualClock
) -> None:
    """A sampler begins again when a replica becomes master, and the counters do not."""
    metrics.stored("t", 1_000, 1)
    sampler = Sampler(metrics, no_lags, clock)
    assert sampler.end_timestamp_ms is None
    await second(sampler, clock)
    assert sampler.rate(Kind.TOPIC, "t", "messages_in") is None
    metrics.stored("t", 5, 1)
    await second(sampler, clock)
    assert sampler.rate(Kind.TOPIC, "t", "messages_in") == 5
    assert sampler.end_timestamp_ms == clock.now_ms() // 1_000 * 1_000


async def test_a_late_sample_counts_for_the_time_since_the_last(
    metrics: BrokerMetrics, clock: ManualClock
) -> None:
    sampler = Sampler(metrics, no_lags, clock)
    await second(sampler, clock)
    metrics.stored("t", 30, 1)
    await second(sampler, clock, 3)
    await sampler.sample()  # the same second
    assert values(sampler, Kind.TOPIC, "t", "messages_in") == [10]
    assert values(sampler, Kind.BROKER, "", "messages_in") == [10]
    metrics.stored("t", 8, 1)
    await second(sampler, clock, 2)
    assert values(sampler, Kind.TOPIC, "t", "messages_in") == [10, 4, 4]


async def test_a_step_of_the_wall_clock_keeps_the_history(
    metrics: BrokerMetrics, clock: ManualClock
) -> None:
    sampler = Sampler(metrics, no_lags, clock)
    await second(sampler, clock)
    metrics.stored("t", 1, 1)
    await second(sampler, clock)
    clock.jump(-3_600_000)
    metrics.stored("t", 2, 1)
    await second(sampler, clock)
    assert values(sampler, Kind.TOPIC, "t", "messages_in") == [1, 2]


async def test_a_subject_that_is_still_gives_way(
    metrics: BrokerMetrics, clock: ManualClock
) -> None:
    """There is room for the broker and two topics."""
    sampler = Sampler(metrics, no_lags, clock, max_figures=len(FIGURES[Kind.BROKER]) + 8)
    await second(sampler, clock)
    for topic in ("a", "b", "c"):
        metrics.stored(topic, 1, 1)
        await second(sampler, clock)
    kept = {topic for topic in "abc" if sampler.history(Kind.TOPIC, topic)}
    assert len(kept) == 2 and sampler.omitted == 1
    (lacking,) = {"a", "b", "c"} - kept
    for _ in range(9):  # its rate would be that of the last 10 s
        await second(sampler, clock)
        assert sampler.omitted == 1
        assert sampler.rate(Kind.TOPIC, lacking, "messages_in") is None
    await second(sampler, clock)
    assert sampler.omitted == 0
    assert sampler.rate(Kind.TOPIC, lacking, "messages_in") == 0
    for _ in range(60):
        metrics.stored("a", 1, 1)
        await second(sampler, clock)
    metrics.stored("c", 5, 1)
    await second(sampler, clock)
    assert {topic for topic in "abc" if sampler.history(Kind.TOPIC, topic)} == {"a", "c"}
    assert values(sampler, Kind.TOPIC, "c", "messages_in")[-1:] == [5]
    # One that comes back counts only since the last sample.
    for _ in range(61):
        metrics.stored("a", 1, 1)
        await second(sampler, clock)
    metrics.stored("b", 7, 1)
    await second(sampler, clock)
    assert values(sampler, Kind.TOPIC, "b", "messages_in") == [7]


async def test_omitted_subjects_are_known_during_a_sample(
    metrics: BrokerMetrics, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_broker.delivery.statistics.sampler.SLICE", 1)
    sampler = Sampler(metrics, no_lags, clock, max_figures=len(FIGURES[Kind.BROKER]))
    await second(sampler, clock)
    await second(sampler, clock)
    metrics.stored("a", 1, 1)
    metrics.stored("b", 1, 1)
    await second(sampler, clock)
    clock.advance(1_000)
    sampling = asyncio.create_task(sampler.sample())
    while not sampling.done():
        assert sampler.omitted == 2
        await asyncio.sleep(0)


async def test_the_lag_is_unknown_until_it_is_computed(
    metrics: BrokerMetrics, clock: ManualClock
) -> None:
    sampler = Sampler(metrics, lambda: iter([("g", "t", 3)]), clock)
    await second(sampler, clock)
    await second(sampler, clock)
    lag = FIGURES[Kind.BROKER].index("lag")
    assert isnan(sampler.latest(Kind.BROKER, "")[lag])
    await sampler.measure_lags()
    await second(sampler, clock)
    assert sampler.latest(Kind.BROKER, "")[lag] == 3


@pytest.mark.parametrize("deleted", [(Kind.TOPIC, "t"), (Kind.GROUP, "g")])
async def test_no_rate_is_negative_after_a_deletion(
    metrics: BrokerMetrics, clock: ManualClock, deleted: tuple[Kind, str]
) -> None:
    """The deletion of a topic lowers the totals of its groups, and the other way round."""
    sampler = Sampler(metrics, no_lags, clock)
    await second(sampler, clock)
    for topic, group in (("t", "g"), ("t", "h"), ("u", "g")):
        metrics.delivered(topic, group, 100, 100)
    await second(sampler, clock)
    sampler.forget(*deleted)
    kind, name = (Kind.GROUP, "g") if deleted[0] is Kind.TOPIC else (Kind.TOPIC, "t")
    await second(sampler, clock)
    assert values(sampler, kind, name, "messages_out") == [200]
    if kind is Kind.GROUP:  # the group has no other topic
        assert isnan(sampler.latest(kind, "h")[0])
    assert name in sampler.busiest(kind, 2)
    metrics.delivered(*(("u", "g") if kind is Kind.GROUP else ("t", "h")), 5, 5)
    await second(sampler, clock)
    assert values(sampler, kind, name, "messages_out") == [200, 5]


async def test_lags_are_levels_of_groups(metrics: BrokerMetrics, clock: ManualClock) -> None:
    sampler = Sampler(metrics, no_lags, clock)
    await second(sampler, clock)
    sampler.lag_of = {"g": 7, "h": 0}
    await second(sampler, clock)
    sampler.lag_of = {"g": 9, "h": 0}
    await second(sampler, clock)
    assert values(sampler, Kind.GROUP, "g", "lag") == [7, 9]
    assert sampler.history(Kind.GROUP, "h") is None  # it has never been active
    assert values(sampler, Kind.BROKER, "", "lag") == [7, 9]


async def test_lags_take_a_fiftieth_of_the_time(metrics: BrokerMetrics, clock: ManualClock) -> None:
    rounds = 0

    def lags() -> Iterator[tuple[str, str, int]]:
        nonlocal rounds
        rounds += 1
        clock.advance(100)
        return iter([("g", "t", 1), ("g", "u", 2)])

    sampler = Sampler(metrics, lags, clock)
    for _ in range(20):
        await sampler.measure_lags()
        clock.advance(1_000)
    assert (sampler.lag_of, rounds) == ({"g": 3}, 4)


async def test_a_deleted_topic_has_no_history(metrics: BrokerMetrics, clock: ManualClock) -> None:
    sampler = Sampler(metrics, no_lags, clock)
    await second(sampler, clock)
    metrics.stored("t", 1, 1)
    await second(sampler, clock)
    sampler.forget(Kind.TOPIC, "t")
    assert sampler.history(Kind.TOPIC, "t") is None
    assert not metrics.stored_by and metrics.messages_in == 1
    await second(sampler, clock)
    metrics.stored("t", 4, 1)
    await second(sampler, clock)
    assert values(sampler, Kind.TOPIC, "t", "messages_in")[-1] == 4
    assert values(sampler, Kind.BROKER, "", "messages_in") == [1, 0, 4]


async def test_the_series_of_what_is_deleted_disappear(
    metrics: BrokerMetrics, clock: ManualClock
) -> None:
    sampler = Sampler(metrics, no_lags, clock)
    for topic, group in (("t", "g"), ("u", "h")):
        metrics.stored(topic, 1, 1)
        metrics.delivered(topic, group, 1, 1)
        metrics.lags({lag_labels(group, topic): 5})
        metrics.lite_lags({(group, topic): 5})
        metrics.transaction_ended(topic, committed=True, age_ms=1)
        metrics.dead_lettered(group, 1)
        metrics.subscriptions_differ(group)
        metrics.half_messages({topic: 1})
    sampler.forget(Kind.TOPIC, "t")
    sampler.forget(Kind.GROUP, "h")
    metrics.half_messages({})
    labels = [
        dict(zip(metric.labels, values, strict=True))
        for metric, items in metrics.registry.collect()
        for values, _ in items
        if "topic" in metric.labels or "consumer_group" in metric.labels
    ]
    assert len(labels) > 5
    assert not [each for each in labels if each.get("topic") == "t"]
    assert not [each for each in labels if each.get("consumer_group") == "h"]


async def test_an_idle_topic_has_rates_of_0(metrics: BrokerMetrics, clock: ManualClock) -> None:
    sampler = Sampler(metrics, no_lags, clock)
    assert all(isnan(each) for each in sampler.latest(Kind.TOPIC, "idle"))
    for _ in range(4):
        await second(sampler, clock)
    found = sampler.values(Kind.TOPIC, "idle", "messages_in", SECONDS)
    assert [each for each in found if not isnan(each)] == [0, 0, 0]
    assert list(sampler.latest(Kind.TOPIC, "idle")) == [0, 0, 0, 0]
    lags = sampler.values(Kind.GROUP, "idle", "lag", SECONDS)
    assert all(isnan(each) for each in lags)
    metrics.stored("idle", 8, 1)
    await second(sampler, clock)
    found = sampler.values(Kind.TOPIC, "idle", "messages_in", SECONDS)
    assert [each for each in found if not isnan(each)] == [0, 0, 0, 8]
    assert sampler.rate(Kind.TOPIC, "idle", "messages_in") == 2


async def test_the_busiest_are_known(metrics: BrokerMetrics, clock: ManualClock) -> None:
    sampler = Sampler(metrics, no_lags, clock)
    await second(sampler, clock)
    for number in range(4):
        metrics.stored(f"t{number}", number + 1, 1)
    metrics.delivered("t0", "g", 10, 1)
    sampler.lag_of = {"far behind": 9, "behind": 1}
    await second(sampler, clock)
    assert sampler.busiest(Kind.TOPIC, 2) == ["t0", "t3"]
    assert sampler.busiest(Kind.GROUP, 5) == ["g", "far behind", "behind"]
    assert sampler.busiest(Kind.GROUP, 0) == []


async def test_the_history_takes_at_most_10_mb(metrics: BrokerMetrics, clock: ManualClock) -> None:
    sampler = Sampler(metrics, no_lags, clock)
    await second(sampler, clock)
    for number in range(4_000):
        metrics.stored(f"topic-{number}", 1, 1)
    tracemalloc.start()
    await second(sampler, clock)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    subjects = [(Kind.BROKER, ""), *((Kind.TOPIC, f"topic-{number}") for number in range(4_000))]
    kept = [found for each in subjects if (found := sampler.history(*each))]
    assert sum(history.figures for history in kept) > MAX_FIGURES - 4
    assert sampler.omitted > 1_000
    assert used < 10_000_000
    topic = kept[0]
    assert [len(topic.values(0, ring)) for ring in (SECONDS, MINUTES, HOURS)] == [60, 120, 48]
