"""Each row of a task of the sink is at the broker, under one message id, although the broker is
killed at random moments while it is written; the task waits and sends again what nobody knows of.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from aerobee_client import AdminClient, MqError
from aerobee_spark.writing.message_columns import FrameColumns
from aerobee_spark.writing.options import WriteOptions
from aerobee_spark.writing.task import Task
from fault.conftest import Campaign
from support.clock.polling import until_sync
from support.processes.service import ServiceProcess, namesrv_and_broker
from support.spark.sink import stored

pytestmark = [pytest.mark.slow]

TOPIC = "rows"
ROWS, ROWS_OF_CAMPAIGN = 20_000, 1_000_000
KILLS, KILLS_OF_CAMPAIGN = 1, 20
BATCH = 10_000
TIMEOUT_S = 900


@pytest.fixture
def services(tmp_path: Path) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    with namesrv_and_broker(tmp_path) as running:
        yield running


def batches(count: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, BATCH):
        numbers = range(start, min(count, start + BATCH))
        yield pa.record_batch({"body": pa.array([str(number) for number in numbers])})


def test_each_row_is_there_when_the_broker_is_killed(
    services: tuple[ServiceProcess, ServiceProcess], campaign: Campaign
) -> None:
    namesrv, broker = services
    seed = campaign.seeds(1, 1)[0]
    rng = random.Random(seed)
    count = ROWS_OF_CAMPAIGN if campaign.long else ROWS
    kills = KILLS_OF_CAMPAIGN if campaign.long else KILLS
    rate = str(count // 8 if not campaign.long else count // 100)
    options = {"nameServer": namesrv.address, "topic": TOPIC, "maxMessagesPerSecond": rate}
    given = WriteOptions.parse(options | {"sendTimeoutMs": "120000"})
    task = Task(given, FrameColumns.of([("body", "string")]), "job", 0)
    with AdminClient(namesrv.address) as admin, ThreadPoolExecutor(1) as beside:
        admin.create_topic(TOPIC, queues=4)
        sending = beside.submit(task.write, batches(count))
        for place in sorted(rng.randrange(count // 10, count * 9 // 10) for _ in range(kills)):
            until_sync(
                lambda place=place: sending.done() or messages(admin) >= place,  # type: ignore[misc]
                timeout_s=TIMEOUT_S,
                retry_on=(MqError,),
            )
            broker.kill()
            broker.start()
        assert sending.result(TIMEOUT_S) == count
        found = stored(admin, TOPIC)
    ids = {each.unique_message_id: int(each.body) for each in found}
    assert sorted(ids.values()) == list(range(count))
    assert len({(each.unique_message_id, each.body) for each in found}) == count
    campaign.report(f"seed {seed}: {count} rows, {kills} kills, {len(found) - count} twice")


def messages(admin: AdminClient) -> int:
    return sum(queue.max_offset for queue in admin.topic_status(TOPIC))
