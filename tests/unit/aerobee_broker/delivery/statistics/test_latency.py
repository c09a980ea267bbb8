"""Percentiles of the times of sends, on a loop whose time is made up."""

from __future__ import annotations

import asyncio
from math import isnan

import pytest

from aerobee_broker.delivery.statistics.history import HOURS, MINUTES, SECONDS, Ring
from aerobee_broker.delivery.statistics.latency import MEASURED_PER_S, Histogram, SendLatency
from aerobee_broker.delivery.statistics.sampler import FIGURES, Kind, Sampler
from aerobee_broker.metrics import BrokerMetrics
from aerobee_chassis.metrics.series import Registry
from support.clock.virtual_loop import LoopClock


def test_an_empty_histogram_knows_no_percentile() -> None:
    assert isnan(Histogram().percentile(0.5))


def test_a_percentile_is_at_most_5_percent_wrong() -> None:
    histogram = Histogram()
    for number in range(1, 1_001):
        histogram.add(number / 10)
    assert histogram.percentile(0.5) == pytest.approx(50, rel=0.05)
    assert histogram.percentile(0.99) == pytest.approx(99, rel=0.05)


def test_times_beyond_the_buckets_are_kept() -> None:
    histogram = Histogram()
    histogram.add(0)
    histogram.add(1e9)
    assert histogram.percentile(0.5) < 0.02
    assert histogram.percentile(0.99) > 90_000


async def send(latency: SendLatency, seconds: float) -> None:
    begin = latency.begin()
    await asyncio.sleep(seconds)
    latency.end(begin)


async def test_some_of_many_sends_are_measured_and_stand_for_the_others() -> None:
    await asyncio.sleep(1)
    latency = SendLatency()
    for _ in range(10 * MEASURED_PER_S):
        await send(latency, 0.001)
    latency.take(1)
    begun = [latency.begin() for _ in range(10 * MEASURED_PER_S)]
    assert sum(map(bool, begun)) == MEASURED_PER_S
    await asyncio.sleep(0.004)
    for begin in begun:
        latency.end(begin)
    taken = latency.take(1)
    assert taken.percentile(0.5) == pytest.approx(4, rel=0.06)
    assert sum(taken._counts) == 10 * MEASURED_PER_S


def latest(sampler: Sampler, figure: str, ring: Ring) -> float:
    history = sampler.history(Kind.BROKER)
    assert history is not None
    return history.values(FIGURES[Kind.BROKER].index(figure), ring)[-1]


async def test_each_period_has_its_own_percentiles() -> None:
    metrics = BrokerMetrics(Registry())
    sampler = Sampler(metrics, lambda: iter(()), LoopClock())
    await asyncio.sleep(40)  # to the end of a minute
    await sampler.sample()
    for second in range(3_600):
        await asyncio.sleep(1 - 0.002)
        await send(sampler.send_latency, 0.002 if second % 60 else 0.0015)
        await sampler.sample()
    assert latest(sampler, "send_latency_p50_ms", SECONDS) == pytest.approx(2, rel=0.06)
    assert latest(sampler, "send_latency_p99_ms", MINUTES) == pytest.approx(2, rel=0.06)
    assert latest(sampler, "send_latency_p50_ms", HOURS) == pytest.approx(2, rel=0.06)
