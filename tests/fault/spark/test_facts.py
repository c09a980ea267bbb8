"""Facts land once, whatever is killed: the job in the middle of a write, between output and commit
and after the commit, at random moments; the broker.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import AdminClient, Message, Producer
from aerobee_spark.table import rows
from aerobee_spark.table.files import FactsFiles
from fault.conftest import Campaign
from support.processes.service import ServiceProcess, namesrv_and_broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TESTS = Path(__file__).parents[2]
TOPIC = "flights"
TIMEOUT_S = 300
KILLED = -9
Key = tuple[str, str, int, int]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    data = tmp_path / "services"
    data.mkdir()
    with namesrv_and_broker(data) as running:
        yield running


@pytest.fixture
def admin(services: tuple[ServiceProcess, ServiceProcess]) -> Iterator[AdminClient]:
    with AdminClient(services[0].address) as client:
        client.create_topic(TOPIC, queues=3)
        yield client


def send(namesrv: str, count: int, prefix: str) -> None:
    messages = [
        Message(TOPIC, f"{prefix} {i}".encode(), keys=f"{prefix}-{i}") for i in range(count)
    ]
    with Producer("tests", namesrv=namesrv) as producer:
        for start in range(0, count, 50):
            producer.send_batch(messages[start : start + 50])


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )


def landing(namesrv: str, table: Path) -> list[str]:
    given = ["--namesrv", namesrv, "--topic", TOPIC, "--table", str(table)]
    return [*given, "--batch-size", "150", "--json"]


def killed(place: str, batch: int, arguments: list[str]) -> None:
    done = run("support.spark.killed_landing", place, str(batch), *arguments)
    # A kill by the clock may come when the job has ended.
    late = place.startswith("after:") and done.returncode == 0
    assert done.returncode == KILLED or late, done.stderr


def landed(arguments: list[str]) -> dict[str, Any]:
    done = run("aerobee_spark", "facts", *arguments)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def keys_in(table: Path) -> Counter[Key]:
    files = FactsFiles(table)
    return Counter(
        (row["topic"], row["brokerName"], row["queueId"], row["queueOffset"])
        for batch in rows.read(files, files.snapshot())
        for row in batch.select(["topic", "brokerName", "queueId", "queueOffset"]).to_pylist()
    )


def keys_at(admin: AdminClient) -> Counter[Key]:
    return Counter(
        (TOPIC, queue.broker_name, queue.queue_id, offset)
        for queue in admin.topic_status(TOPIC)
        for offset in range(queue.max_offset)
    )


def test_each_message_is_in_the_table_once_through_kills(
    services: tuple[ServiceProcess, ServiceProcess], admin: AdminClient, tmp_path: Path
) -> None:
    namesrv, broker = services
    table = tmp_path / "table"
    arguments = landing(namesrv.address, table)
    send(namesrv.address, 500, "first")
    killed("writing", 0, arguments)
    assert keys_in(table) == Counter()
    killed("written", 1, arguments)
    part = keys_in(table)
    assert 0 < len(part) <= 150
    broker.kill()
    broker.start()
    killed("committed", 0, arguments)
    assert len(keys_in(table)) > len(part)
    admin.update_topic(TOPIC, queues=5)
    send(namesrv.address, 150, "second")
    result = landed(arguments)
    assert keys_in(table) == keys_at(admin)
    assert max(keys_in(table).values()) == 1
    assert (result["lost"], result["away"], len(result["queues"])) == (0, [], 5)


def test_kills_at_random_moments_land_each_message_once(
    services: tuple[ServiceProcess, ServiceProcess],
    admin: AdminClient,
    tmp_path: Path,
    campaign: Campaign,
) -> None:
    """The long campaign: twenty kills of the job and of the broker each, while messages come."""
    if not campaign.long:
        pytest.skip("in the long campaign")
    namesrv, broker = services
    seed = next(campaign.seeds(1, 1))
    campaign.tell(f"seed {seed}")
    chance = random.Random(seed)
    table = tmp_path / "table"
    arguments = landing(namesrv.address, table)
    for number in range(20):
        send(namesrv.address, chance.randrange(100, 900), f"round-{number}")
        place = chance.choice(
            ["writing", "written", "committed", f"after:{chance.randrange(3000)}"]
        )
        killed(place, chance.randrange(2), arguments)
        broker.kill()
        broker.start()
        found = keys_in(table)
        assert all(count == 1 for count in found.values())
        assert not found - keys_at(admin)
    landed(arguments)
    assert keys_in(table) == keys_at(admin)
