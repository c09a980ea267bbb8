"""The times of calls: by RPC, outcome, and whether the call waited for an event."""

from __future__ import annotations

import asyncio

from aerobee_chassis.metrics.series import Distribution, Kind, Metric
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.call_times import CallTimes, begin_wait

TIMES = Metric("times", Kind.HISTOGRAM, "Times.", ("protocol", "rpc", "code", "long"), buckets=(1,))


async def test_a_call_that_waits_counts_apart_and_does_not_mark_the_next_one() -> None:
    times = CallTimes(TIMES, lambda failure: failure.status.lower())

    async def call(waits: bool, outcome: object) -> None:
        if waits:
            begin_wait()
        await asyncio.sleep(0)
        times.ended("PullMessage", outcome, 0.5)

    for waits in (True, False):
        await asyncio.create_task(call(waits, None))
    await asyncio.create_task(call(False, Failure("NOT_FOUND", "")))
    counts = {}
    for labels, value in times.series.items():
        assert isinstance(value, Distribution)
        counts[labels[1:]] = value.counts
    assert counts == {
        ("pull_message", "success", "true"): [0, 1],
        ("pull_message", "success", "false"): [0, 1],
        ("pull_message", "not_found", "false"): [0, 1],
    }
