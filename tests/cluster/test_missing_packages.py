"""A worker whose Python lacks a package that a read needs says which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_client import AdminClient, Message, Producer
from support.processes.service import namesrv_and_broker
from support.spark import submitted_read
from support.spark.standalone import StandaloneCluster
from support.spark.submitted import Submitted

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    running = StandaloneCluster(tmp_path_factory.mktemp("cluster"), 1)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with namesrv_and_broker(tmp_path_factory.mktemp("services")) as (namesrv, _):
        with (
            AdminClient(namesrv.address) as admin,
            Producer("tests", namesrv=namesrv.address) as producer,
        ):
            admin.create_topic("flights", queues=1)
            producer.send(Message("flights", b"1"))
        yield namesrv.address


@pytest.mark.parametrize(
    ("module", "reported"),
    [
        ("google", "MissingPackageError: the Python of this task, "),
        ("numpy", "MissingPackageError: the Python of this task, "),
        ("pyarrow", "No module named 'pyarrow'"),  # Spark's own need, before ours
    ],
)
def test_the_package_is_named(
    cluster: StandaloneCluster, namesrv: str, tmp_path: Path, module: str, reported: str
) -> None:
    gate, found = tmp_path / "gate", tmp_path / "found.json"
    gate.touch()
    job = (submitted_read.__file__, "flights", "1", str(gate), str(found))
    submitted = Submitted(tmp_path / "job", cluster, namesrv, *job, lacking=(module,))
    assert submitted.wait() == 1
    log = submitted.log.read_text()
    assert reported in log, log
    assert {"google": "protobuf"}.get(module, module) in log.partition(reported)[2].splitlines()[
        0
    ] + reported
