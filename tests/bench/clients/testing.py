"""The suite of the pytest plugin: how long it starts and stops, what it weighs; and five hours of
virtual time, in which a message dies after 16 retries.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from aerobee_client import Message, Producer, PushConsumer, ReceivedMessage
from aerobee_client.testing import RocketMq, SuiteProcess
from bench.measure import Result, resident_mb

ATTEMPTS = 5
READY_LIMIT_S, STOP_LIMIT_S, MEMORY_LIMIT_MB, RETRIES_LIMIT_S = 1.0, 0.5, 110.0, 3.0


async def results() -> list[Result]:
    """Medians, each against its limit."""
    measured = [await asyncio.to_thread(_attempt) for _ in range(ATTEMPTS)]
    ready, stop, memory, retries = zip(*measured, strict=True)
    return [
        _limited("test_suite_ready_s", "s", ready, READY_LIMIT_S),
        _limited("test_suite_stop_s", "s", stop, STOP_LIMIT_S),
        _limited("test_suite_memory", "MB", memory, MEMORY_LIMIT_MB),
        _limited("test_suite_16_retries_s", "s", retries, RETRIES_LIMIT_S),
    ]


def _attempt() -> tuple[float, float, float, float]:
    """Seconds until it serves, seconds to stop, MB resident and idle, seconds of 16 retries."""
    with tempfile.TemporaryDirectory() as folder:
        suite = SuiteProcess(Path(folder))
        begin = time.perf_counter()
        suite.start()
        ready_s = time.perf_counter() - begin
        memory_mb = resident_mb(suite.pid)
        retries_s = _sixteen_retries(suite)
        begin = time.perf_counter()
        suite.stop()
        return ready_s, time.perf_counter() - begin, memory_mb, retries_s


def _sixteen_retries(suite: SuiteProcess) -> float:
    def refuse(message: ReceivedMessage) -> None:
        raise ValueError("never")

    with RocketMq(suite.namesrv, suite.proxy) as rocketmq:
        topic, group = rocketmq.topic(), rocketmq.group()
        consumer = PushConsumer(group, refuse, namesrv=suite.namesrv)
        consumer.subscribe(topic)
        with consumer, Producer(namesrv=suite.namesrv) as producer:
            producer.send(Message(topic, b"7"))
            begin = time.perf_counter()
            rocketmq.advance(hours=5)
            took_s = time.perf_counter() - begin
            if len(rocketmq.dead_letters(group)) != 1:
                raise RuntimeError("the message is not dead-lettered")
        return took_s


def _limited(name: str, unit: str, values: tuple[float, ...], limit: float) -> Result:
    value = statistics.median(values)
    note = f"median of {ATTEMPTS}, worst {max(values):.2f} {unit}; baseline: the limit"
    return Result(name, unit, value, limit, value / limit, 1.0, note)
