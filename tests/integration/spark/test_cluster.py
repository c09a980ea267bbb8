"""The data source on a real standalone cluster, by spark-submit: the workers have what others made,
and ours comes in a zip. One of them dies in the middle of a read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_client import AdminClient, Message, Producer
from support.clock.polling import until_sync
from support.processes.service import namesrv_and_broker
from support.spark import submitted_read
from support.spark.standalone import StandaloneCluster
from support.spark.submitted import Submitted

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "flights"
QUEUES, MESSAGES, TASK_MESSAGES = 4, 6_000, 200
TIMEOUT_S = 180.0


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    running = StandaloneCluster(tmp_path_factory.mktemp("cluster"), 2)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with namesrv_and_broker(tmp_path_factory.mktemp("services")) as (namesrv, _):
        with AdminClient(namesrv.address) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        with Producer("tests", namesrv=namesrv.address) as producer:
            for start in range(0, MESSAGES, 500):
                producer.send_batch([Message(TOPIC, b"%d" % i) for i in range(start, start + 500)])
        yield namesrv.address


def test_a_read_outlives_a_worker_that_dies_in_the_middle(
    standalone: StandaloneCluster, namesrv: str, tmp_path: Path
) -> None:
    gate, found = tmp_path / "gate", tmp_path / "found.json"
    job = (submitted_read.__file__, TOPIC, str(TASK_MESSAGES), str(gate), str(found))
    submitted = Submitted(tmp_path, standalone, namesrv, *job)

    def both_are_held() -> bool:
        if submitted.process.poll() is not None:
            pytest.fail(submitted.log.read_text())
        return submitted.tasks() == (submitted_read.HELD, 2)

    until_sync(both_are_held, timeout_s=TIMEOUT_S)
    assert standalone.busy() == set(standalone.workers)
    killed, stays = standalone.workers
    standalone.workers[killed].kill()
    gate.touch()
    assert submitted.wait() == 0, submitted.log.read_text()
    read = json.loads(found.read_text("utf-8"))

    # Ours came by the zip, and only by it.
    assert "/aerobee.zip/" in read["module"]
    # Each message that the broker has, none twice.
    with AdminClient(namesrv) as admin:
        expected = Counter(
            (queue.broker_name, queue.queue_id, offset)
            for queue in admin.topic_status(TOPIC)
            for offset in range(queue.min_offset, queue.max_offset)
        )
    assert expected.total() == MESSAGES
    assert Counter(tuple(key) for key in read["keys"]) == expected
    # Executors of both workers ran tasks, and the driver none.
    ran = {
        event["Task Info"]["Executor ID"] for event in submitted.listened("SparkListenerTaskEnd")
    }
    added = {event["Executor ID"] for event in submitted.listened("SparkListenerExecutorAdded")}
    lost = {event["Executor ID"] for event in submitted.listened("SparkListenerExecutorRemoved")}
    assert len(ran) == 2 and ran == added and len(lost) == 1 and lost < ran, (ran, added, lost)
    until_sync(lambda: {worker["port"] for worker in standalone.alive()} == {stays})
