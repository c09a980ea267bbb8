"""Facts land once, whatever is killed: the job in the middle of a write, between output and commit
and after the commit; the broker while the job reads.

`--campaign` kills at 20 random places of each kind, adds queues, deletes the checkpoint, and has a
second broker away for some runs.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import AdminClient, Message, Producer
from aerobee_spark.report.request import LOCAL, SPARK
from aerobee_spark.table import rows
from aerobee_spark.table.files import FactsFiles
from fault.conftest import Campaign
from support.clock.polling import until_sync
from support.processes.service import ServiceProcess, broker_process, namesrv_and_broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TESTS = Path(__file__).parents[2]
TOPIC = "flights"
TIMEOUT_S = 300
KILLED = -9
# Of the campaign: kills at each place; rounds before which a queue is added on each broker, the
# checkpoint is deleted, and the second broker goes away and comes back.
KILLS = 20
GROWS, FORGETS, AWAY, BACK = (10, 35), (25, 50), (15, 40), (18, 43)
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


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )


def landing(namesrv: str, table: Path | str, engine: str) -> list[str]:
    given = ["--namesrv", namesrv, "--topic", TOPIC, "--table", str(table), "--engine", engine]
    return [*given, "--batch-size", "150", "--json", "--quiet"]


def killed(place: str, batch: int, arguments: list[str]) -> None:
    job = start("support.spark.killed_landing", place, str(batch), *arguments)
    _, stderr = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == KILLED, stderr


def landed(
    arguments: list[str],
    table: Path,
    broker: ServiceProcess,
    *,
    after_s: float = 0.0,
    codes: tuple[int, ...] = (0,),
) -> dict[str, Any]:
    """The result of a run during which the broker is killed and started again: so long after the
    first batch is committed."""
    files = FactsFiles(table)
    before = len(files.commits())
    job = start("aerobee_spark", "facts", *arguments)
    until_sync(lambda: len(files.commits()) > before or job.poll() is not None, timeout_s=TIMEOUT_S)
    time.sleep(after_s)
    broker.kill()
    broker.start()
    stdout, stderr = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode in codes, stderr
    result: dict[str, Any] = json.loads(stdout)
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


@pytest.mark.parametrize(("engine", "at_a_uri"), [(LOCAL, False), (SPARK, False), (SPARK, True)])
def test_each_message_is_in_the_table_once_through_kills(
    services: tuple[ServiceProcess, ServiceProcess],
    admin: AdminClient,
    tmp_path: Path,
    *,
    engine: str,
    at_a_uri: bool,
    campaign: Campaign,
) -> None:
    if at_a_uri and not campaign.long:
        pytest.skip("in the long campaign: the commits of both are tried by the contract of tables")
    namesrv, broker = services
    table = tmp_path / "table"
    arguments = landing(namesrv.address, table.as_uri() if at_a_uri else table, engine)
    send(namesrv.address, 500, "first")
    killed("writing", 0, arguments)
    assert keys_in(table) == Counter()
    killed("written", 1, arguments)
    part = keys_in(table)
    assert 0 < len(part) <= 150
    killed("committed", 0, arguments)
    assert len(keys_in(table)) > len(part)
    admin.update_topic(TOPIC, queues=5)
    send(namesrv.address, 350, "second")
    result = landed(arguments, table, broker)
    assert keys_in(table) == keys_at(admin)
    assert max(keys_in(table).values()) == 1
    assert (result["lost"], result["away"], len(result["queues"])) == (0, [], 5)


@pytest.mark.parametrize("engine", [LOCAL, SPARK])
def test_kills_at_random_places_land_each_message_once(
    services: tuple[ServiceProcess, ServiceProcess],
    admin: AdminClient,
    tmp_path: Path,
    engine: str,
    campaign: Campaign,
) -> None:
    if not campaign.long:
        pytest.skip("in the long campaign")
    namesrv, broker = services
    seed = campaign.seeds(1, 1)[0]
    chance = random.Random(seed)
    table, home = tmp_path / "table", tmp_path / "broker-b"
    home.mkdir()
    arguments = landing(namesrv.address, table, engine)
    places = chance.sample(["writing", "written", "broker"] * KILLS, 3 * KILLS)
    with broker_process(home, "--set=brokerName=broker-b", namesrv=namesrv.address) as second:
        queues = 3
        admin.update_topic(TOPIC, queues=queues)
        for number, place in enumerate(places):
            if number in GROWS:
                queues += 1
                admin.update_topic(TOPIC, queues=queues)
            if number in FORGETS:
                shutil.rmtree(table / "_checkpoint", ignore_errors=engine == LOCAL)
            if number in AWAY:
                second.kill()
            if number in BACK:
                second.start()
            away = any(gone <= number < back for gone, back in zip(AWAY, BACK, strict=True))
            send(namesrv.address, chance.randrange(300, 900), f"round-{number}")
            if place == "broker":
                after_s = chance.random()
                landed(arguments, table, broker, after_s=after_s, codes=(0, 3))
            else:
                killed(place, chance.randrange(2), arguments)
            found = keys_in(table)
            assert set(found.values()) <= {1}, f"seed {seed}, round {number}: {place}"
            assert away or not found - keys_at(admin), f"seed {seed}, round {number}: {place}"
        result = landed(arguments, table, broker)
        assert keys_in(table) == keys_at(admin), f"seed {seed}"
    assert (result["lost"], result["away"]) == (0, []), f"seed {seed}"
    campaign.report(
        f"{engine}, seed {seed}: {len(found):,} messages; {KILLS} kills in the middle of a write, "
        f"{KILLS} between output and commit, {KILLS} of the broker; each in the table once"
    )
