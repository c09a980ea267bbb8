"""Two brokers whose queues are lists; a Spark session, real services and a client of theirs, for
all tests of a module.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from aerobee_client import AdminClient
from support.client.fake_broker import FakeCluster
from support.processes.service import namesrv_and_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster("broker-a", "broker-b") as running:
        yield running


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Knows the format."""
    from aerobee_spark import source
    from aerobee_spark.jvm.session import session

    scratch = tmp_path_factory.mktemp("spark")
    with session(scratch, scratch / "log") as running:
        source.register(running)
        yield running


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address; there is one broker."""
    with namesrv_and_broker(tmp_path_factory.mktemp("services")) as (namesrv, _):
        yield namesrv.address


@pytest.fixture(scope="module")
def admin(namesrv: str) -> Iterator[AdminClient]:
    with AdminClient(namesrv) as client:
        yield client
