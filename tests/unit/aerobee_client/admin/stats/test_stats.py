"""History and live values, merged over two brokers, of which one may not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from itertools import pairwise
from math import nan
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2 as pb

from aerobee_client import AsyncAdminClient
from aerobee_client.admin.stats import BROKER_FIGURES, GROUP_FIGURES, TOPIC_FIGURES, StatsSample
from aerobee_wire.status import Code
from support.client.memory import MemoryBroker, MemoryCluster
from support.codes import raises_code


@pytest.fixture
def brokers() -> list[MemoryBroker]:
    return [MemoryBroker("a", "10.0.0.11:10911"), MemoryBroker("b", "10.0.0.12:10911")]


def subject(name: str, figures: tuple[str, ...], *values: float) -> pb.StatsSubject:
    series = [pb.StatsSeries(figure=figure, values=values) for figure in figures]
    return pb.StatsSubject(name=name, series=series)


def at_b(address: str) -> bool:
    return address.startswith("10.0.0.12")


def get_stats(address: str, request: Any) -> Any:
    """Broker a is one second ahead of b, and only a has the topic "t"."""
    if at_b(address):
        return pb.GetStatsResponse(
            end_timestamp_ms=5_000,
            period_ms=1_000,
            broker=subject("", BROKER_FIGURES, 1, 2, 3),
            groups=[subject("g", GROUP_FIGURES, 7, nan, 7)],
        )
    return pb.GetStatsResponse(
        end_timestamp_ms=6_000,
        period_ms=1_000,
        broker=subject("", BROKER_FIGURES, 10, 20, 30),
        topics=[subject("t", TOPIC_FIGURES, nan, 5, 6)],
        groups=[subject("g", GROUP_FIGURES, 1, 1, 1)],
        omitted=3,
    )


async def test_histories_are_added_up_at_the_same_times(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    cluster.answers["GetStats"] = get_stats
    stats = await admin.get_stats(topics=["t", "unknown"], groups=["g"], period="second")
    assert (stats.period_ms, stats.end_timestamp_ms) == (1_000, 5_000)
    assert list(stats.brokers.by_broker["a"]["messages_in"]) == [None, 10, 20]
    assert list(stats.brokers.cluster["messages_in"]) == [None, 12, 23]
    assert list(stats.brokers.cluster["send_latency_p99_ms"]) == [None, None, None]
    assert list(stats.brokers.by_broker["b"]["send_latency_p99_ms"]) == [1, 2, 3]
    assert list(stats.topics) == ["t"]
    assert list(stats.topics["t"].cluster["bytes_in"]) == [None, None, 5]
    assert list(stats.groups["g"].cluster["lag"]) == [None, None, 8]
    assert (stats.omitted, stats.unanswered) == ({"a": 3}, {})
    (request, _) = cluster.requests("GetStats")
    assert (list(request.topics), request.period) == (["t", "unknown"], pb.STATS_PERIOD_SECOND)


async def test_a_silent_broker_makes_sums_unknown(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    cluster.answers["GetStats"] = get_stats
    cluster.down.add(brokers[1].address)
    stats = await admin.get_stats(topics=["t"])
    assert list(stats.unanswered) == ["b"]
    assert list(stats.brokers.cluster["messages_in"]) == [None, None, None]
    assert list(stats.topics["t"].by_broker["a"]["messages_in"]) == [None, 5, 6]
    cluster.down.add(brokers[0].address)
    with raises_code(Code.BROKER_UNREACHABLE):
        await admin.get_stats()


async def test_a_bad_request_is_refused(admin: AsyncAdminClient, cluster: MemoryCluster) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        await admin.get_stats(period="week")
    with raises_code(Code.INVALID_PARAMETER):
        await anext(admin.watch_stats(busiest_topics=-1))
    assert not cluster.calls


def row(name: str, figures: tuple[str, ...], value: float) -> pb.WatchStatsResponse.Row:
    return pb.WatchStatsResponse.Row(name=name, values=[value] * len(figures))


async def watch_stats(address: str, request: Any) -> AsyncIterator[Any]:
    """Each broker has one busy topic, and an idle one that it reports on request."""
    busy, idle = ("u", "t") if at_b(address) else ("t", "u")
    second = 0
    while True:
        await asyncio.sleep(1)
        second += 1
        answer = pb.WatchStatsResponse(
            end_timestamp_ms=second * 1_000, broker=row("", BROKER_FIGURES, 2)
        )
        answer.topics.append(row(busy, TOPIC_FIGURES, second))
        if idle in request.topics:
            answer.topics.append(row(idle, TOPIC_FIGURES, 0.5))
        yield answer


async def until(
    admin: AsyncAdminClient, is_wanted: Callable[[StatsSample], bool], most: int = 40
) -> StatsSample:
    async with aclosing(admin.watch_stats(busiest_topics=1)) as samples:
        async for sample in samples:
            if is_wanted(sample):
                return sample
            most -= 1
            assert most, sample
    raise AssertionError("not reached: the samples do not end")


async def test_what_one_broker_reports_is_requested_from_the_others(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    cluster.answers["WatchStats"] = watch_stats
    first = await until(admin, lambda sample: len(sample.end_timestamp_ms) == 2)
    assert first.brokers.cluster["messages_in"] == 4
    assert first.brokers.cluster["send_latency_p50_ms"] is None
    assert first.topics["t"].cluster["messages_in"] is None
    assert list(first.topics["t"].by_broker) == ["a"]
    known = await until(admin, lambda sample: sample.topics["t"].cluster["bytes_in"] is not None)
    assert set(known.topics["t"].by_broker) == {"a", "b"}
    assert not known.unanswered


async def test_samples_come_once_a_second(admin: AsyncAdminClient, cluster: MemoryCluster) -> None:
    async def shifted(address: str, request: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(0.5 if at_b(address) else 0)
        async for answer in watch_stats(address, request):
            yield answer

    cluster.answers["WatchStats"] = shifted
    loop, times = asyncio.get_running_loop(), []
    async with aclosing(admin.watch_stats()) as samples:
        async for _ in samples:
            times.append(loop.time())
            if len(times) == 5:
                break
    assert all(later - earlier >= 0.9 for earlier, later in pairwise(times))


async def test_a_broker_that_goes_is_named_until_it_is_back(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    async def for_2_s(address: str, request: Any) -> AsyncIterator[Any]:
        sent = 0
        async for answer in watch_stats(address, request):
            yield answer
            sent += 1
            if at_b(address) and sent == 2:
                cluster.down.add(address)
                return

    cluster.answers["WatchStats"] = for_2_s
    seen: list[tuple[float | None, list[str]]] = []
    async with aclosing(admin.watch_stats()) as samples:
        async for sample in samples:
            seen.append((sample.brokers.cluster["messages_in"], list(sample.unanswered)))
            if sample.unanswered:
                cluster.down.discard(brokers[1].address)
            if len(seen) == 12:
                break
    assert (None, ["b"]) in seen
    assert (4, []) in seen[seen.index((None, ["b"])) :]


async def test_a_broker_that_hangs_is_named(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    async def hanging(address: str, request: Any) -> AsyncIterator[Any]:
        async for answer in watch_stats(address, request):
            yield answer
            if at_b(address):
                await asyncio.Event().wait()

    cluster.answers["WatchStats"] = hanging
    sample = await until(admin, lambda sample: list(sample.unanswered) == ["b"])
    assert sample.brokers.cluster["messages_in"] is None
    assert sample.brokers.by_broker["a"]["messages_in"] == 2
