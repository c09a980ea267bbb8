"""What a large table costs: topics created while the broker has 50,000, beside appends of the same
size to a file that are synced one by one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_chassis.clock import SystemClock
from aerobee_client import AsyncAdminClient
from aerobee_wire.checked_json import encode
from aerobee_wire.status import MqError
from bench.measure import Result, compare
from support.clock.polling import until
from support.processes.service import broker_process, namesrv_process

TOPICS = 50_000
IN_FLIGHT = 16  # creations at a time
WANTED = 300  # creations a second


def fill(config: Path) -> None:
    """The broker's table before its first start."""
    topics = Topics(SystemClock())
    for number in range(TOPICS):
        attributes = {"message.type": "NORMAL"}
        topics.put(TopicConfig(f"orders-{number:06}", 8, 8, attributes=attributes))
    config.mkdir(parents=True)
    (config / "topics.json").write_bytes(encode(topics.to_json()))


class Appends:
    """The baseline: a line as long as a topic's, appended and synced."""

    def __init__(self, path: Path) -> None:
        row = TopicConfig("orders-000000", 8, 8, attributes={"message.type": "NORMAL"})
        self._line = json.dumps(row.to_json()).encode() + b"\n"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def append(self) -> int:
        os.write(self._fd, self._line)
        os.fdatasync(self._fd)
        return 1

    def close(self) -> None:
        os.close(self._fd)


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        fill(data / "broker" / "broker" / "store" / "config")
        with (
            namesrv_process(data / "namesrv") as namesrv,
            broker_process(data / "broker", namesrv=namesrv.address),
        ):
            return [await creations(namesrv.address, data)]


async def creations(namesrv: str, data: Path) -> Result:
    created = 0
    appends = Appends(data / "baseline")

    async with AsyncAdminClient(namesrv) as admin:

        async def create() -> int:
            nonlocal created
            created += 1
            await admin.create_topic(f"new-{created}", queues=8)
            return 1

        await until(
            lambda: admin.broker_status("broker-a"), "the broker is registered", retry_on=(MqError,)
        )
        note = (
            f"topics a second at {TOPICS:,}, {IN_FLIGHT} creations at a time, each durable and "
            f"registered; baseline: appends of the same size, each synced; wanted: {WANTED}"
        )
        try:
            return await compare(
                "topics_created",
                create,
                appends.append,
                in_flight=IN_FLIGHT,
                baseline_in_flight=1,
                target=None,
                note=note,
            )
        finally:
            appends.close()


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
