"""Two brokers whose queues are lists; real services and a client, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aerobee_client import AdminClient
from support.client.fake_broker import FakeCluster
from support.processes.service import namesrv_and_broker


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster("broker-a", "broker-b") as running:
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


@pytest.fixture
def topic(admin: AdminClient, request: pytest.FixtureRequest) -> str:
    """A new one, named after the test, with four queues."""
    name = "".join(each if each.isalnum() else "_" for each in request.node.name)[:100]
    admin.create_topic(name, queues=4)
    return name
