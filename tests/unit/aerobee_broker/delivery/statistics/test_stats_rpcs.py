"""GetStats and WatchStats over a broker without sockets."""

from __future__ import annotations

import asyncio
from math import isnan
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2 as pb

from aerobee_broker.delivery.statistics.sampler import FIGURES, Kind
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code
from support.broker.handlers import FakeCall, Handlers
from support.broker.harness import BrokerHarness


@pytest.fixture
async def handlers(harness: BrokerHarness) -> Handlers:
    for topic in ("t", "u", "idle"):
        await harness.broker.topics.put(TopicConfig(topic, 1, 1))
    await harness.group("g")
    return Handlers(harness)


async def sample(harness: BrokerHarness, seconds: int = 1) -> None:
    for _ in range(seconds):
        await asyncio.sleep(1)
        await harness.broker.sampler.measure_lags()
        await harness.broker.sampler.sample()


def known(subject: pb.StatsSubject, figure: str) -> list[float]:
    (series,) = [each for each in subject.series if each.figure == figure]
    return [value for value in series.values if not isnan(value)]


async def test_the_history_is_answered(harness: BrokerHarness, handlers: Handlers) -> None:
    request = pb.GetStatsRequest(topics=["t", "unknown", "idle"], groups=["g", "unknown"])
    before = await handlers("GetStats", request)
    assert not before.HasField("end_timestamp_ms") and before.period_ms == 1_000
    assert known(before.broker, "messages_in") == []
    await sample(harness)
    await harness.send("t", b"body", b"body")
    harness.tables.offsets.commit("g", "t", 0, 0)
    await sample(harness, 2)
    answer = await handlers("GetStats", request)
    assert answer.end_timestamp_ms == harness.clock.now_ms()
    assert [len(series.values) for series in answer.broker.series] == [60] * 9
    assert [subject.name for subject in answer.topics] == ["t", "idle"]
    assert [subject.name for subject in answer.groups] == ["g"]
    assert known(answer.topics[0], "bytes_in") == [8, 0]
    assert known(answer.topics[1], "messages_in") == [0, 0]
    assert known(answer.groups[0], "lag")[-1] == 2
    request.period = pb.STATS_PERIOD_MINUTE
    answer = await handlers("GetStats", request)
    assert answer.period_ms == 60_000 and answer.end_timestamp_ms % 60_000 == 0
    assert {len(series.values) for series in answer.broker.series} == {120}


async def test_sends_have_a_latency(harness: BrokerHarness, handlers: Handlers) -> None:
    from aerobee.broker.v1 import message_pb2

    await sample(harness)
    send = message_pb2.SendRequest()
    send.messages.add(topic="t", body=b"x")
    await handlers("Send", send)
    await sample(harness)
    answer = await handlers("GetStats", pb.GetStatsRequest())
    assert len(known(answer.broker, "send_latency_p99_ms")) == 1


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("GetStats", pb.GetStatsRequest(topics=["t"] * 1_001)),
        ("GetStats", pb.GetStatsRequest(period=9)),  # type: ignore[arg-type]
        ("WatchStats", pb.WatchStatsRequest(groups=["g"] * 1_001)),
        ("WatchStats", pb.WatchStatsRequest(busiest_topics=-1)),
        ("WatchStats", pb.WatchStatsRequest(busiest_groups=1_001)),
    ],
)
async def test_a_bad_request_is_refused(handlers: Handlers, name: str, request_: Any) -> None:
    assert (await handlers.refused(name, request_)).code is Code.INVALID_PARAMETER


async def test_each_second_is_streamed_until_the_broker_stops(
    harness: BrokerHarness, handlers: Handlers
) -> None:
    await sample(harness)
    request = pb.WatchStatsRequest(topics=["idle", "unknown"], busiest_topics=1, busiest_groups=1)
    call = FakeCall()
    watching = asyncio.create_task(handlers("WatchStats", request, call))
    await asyncio.sleep(0)
    await harness.send("u", b"1")
    await harness.send("t", b"1", b"2", b"3")
    await sample(harness)
    answer = await call.written.get()
    assert answer.end_timestamp_ms == harness.clock.now_ms()
    assert [row.name for row in answer.topics] == ["idle", "t"]
    rates = dict(zip(FIGURES[Kind.TOPIC], answer.topics[1].values, strict=True))
    assert (rates["messages_in"], rates["bytes_in"]) == (3, 3)
    assert list(answer.topics[0].values) == [0, 0, 0, 0]
    assert dict(zip(FIGURES[Kind.BROKER], answer.broker.values, strict=True))["messages_in"] == 4
    await sample(harness)
    await call.written.get()
    harness.broker.end_long_calls()
    assert await watching is None
