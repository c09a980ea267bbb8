"""The job of the demo without its report: real services, real flights, and a broker that dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aerobee_cli.demo import flights
from aerobee_cli.demo.job import TOPIC, Job
from aerobee_cli.demo.progress import Figures
from aerobee_cli.processes.suite import Suite, SuiteOptions
from aerobee_client import AsyncAdminClient, MqError
from support.clock.polling import until
from support.processes.command import children, command_line
from support.processes.demo import expected


class Silent:
    """Progress that is not shown."""

    def say(self, text: str) -> None:
        print(text)

    def update(self, figures: Figures) -> None: ...

    def close(self) -> None: ...


@asynccontextmanager
async def running(data: Path, restarts: list[str]) -> AsyncIterator[Suite]:
    options = SuiteOptions(data, sets=("brokerName=broker-a",))
    suite = Suite(options, print, restart_broker=True, on_restart=restarts.append)
    try:
        await suite.start()
        watching = asyncio.create_task(suite.watch())
        yield suite
        assert not watching.done()
        watching.cancel()
    finally:
        await suite.stop()


def brokers(but: set[int]) -> set[int]:
    """Broker processes that this process has started, but those."""
    started = {pid for pid in children(os.getpid()) if "aerobee_broker" in command_line(pid)}
    return started - but


async def stored(namesrv: str) -> int:
    """Messages in the topic; 0 while the broker does not answer."""
    try:
        async with AsyncAdminClient(namesrv) as admin:
            return sum(queue.max_offset for queue in await admin.topic_status(TOPIC))
    except MqError:
        return 0


@pytest.mark.slow
async def test_the_figures_hold_when_the_broker_is_killed_twice(tmp_path: Path) -> None:
    """The second kill hits the broker while it starts again."""
    total = 20_000
    restarts: list[str] = []
    async with running(tmp_path, restarts) as suite:
        job = Job(suite.namesrv_address, flights.read_rows(total), total, Silent())
        running_job = asyncio.create_task(job.run())

        async def in_the_middle() -> bool:
            if running_job.done():
                running_job.result()
            return total / 4 < await stored(suite.namesrv_address)

        await until(in_the_middle, "a quarter of the flights is stored")
        assert len(job.sent) < total
        killed: set[int] = set()
        for _ in range(2):
            (pid,) = await until(lambda: brokers(but=killed), "a broker runs")
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        await running_job
    assert restarts == ["broker ended by SIGKILL: see its log"] * 2
    figures, wanted = job.figures(), expected(flights.read_rows(total))
    assert figures == wanted
