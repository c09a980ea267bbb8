"""The image without arguments: everything in one process, for development. With a real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from aerobee.namesrv.v1 import namesrv_pb2, namesrv_pb2_grpc

from aerobee_chassis import healthcheck
from support.clock.polling import until_sync
from support.processes.engine import Container, built_image, docker, require_engine, running
from support.proxy import sdk_cluster
from support.proxy.official_sdk import Sdk, newest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NAMESRV, BROKER, PROXY = 9876, 10911, 8081
SOON_S = 60.0


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    require_engine()
    with built_image() as name:
        yield name


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[Container]:
    with running(image, (NAMESRV, BROKER, PROXY)) as made:
        made.until_serving(PROXY)
        yield made


def test_an_official_sdk_on_the_host_needs_the_proxy_s_port_alone(
    container: Container, tmp_path: Path
) -> None:
    """The first send creates the topic."""
    with Sdk(newest("python"), container.address(PROXY), tmp_path) as sdk:
        sent = sdk_cluster.send(sdk, "orders", 10)
        sdk_cluster.simple(sdk, "billing", "orders")
        assert sorted(sdk_cluster.bodies_of(sdk_cluster.receive(sdk, 10))) == sorted(sent)


def test_the_route_has_the_published_port_of_the_broker(container: Container) -> None:
    """So the classic client on the host works with 9876 and 10911 published under these numbers."""
    with grpc.insecure_channel(container.address(NAMESRV)) as channel:
        stub = namesrv_pb2_grpc.NamesrvServiceStub(channel)
        [broker] = stub.GetClusterInfo(namesrv_pb2.GetClusterInfoRequest(), timeout=10.0).brokers
    assert dict(broker.addresses) == {0: f"127.0.0.1:{BROKER}"}
    assert healthcheck.serving(container.address(BROKER))


def test_the_command_in_the_container_finds_its_name_server(container: Container) -> None:
    docker("exec", container.id, "aerobee", "topic", "create", "by-hand")
    topics = json.loads(docker("exec", container.id, "aerobee", "topic", "list", "--json"))
    assert "by-hand" in {topic["topic"] for topic in topics}


def test_the_container_becomes_healthy_and_stops_in_order(image: str) -> None:
    with running(image, (PROXY,)) as container:
        status = ("inspect", "--format", "{{.State.Health.Status}}", container.id)
        until_sync(lambda: docker(*status) == "healthy\n", "it is healthy", timeout_s=SOON_S)
        docker("stop", container.id)
        code = docker("inspect", "--format", "{{.State.ExitCode}}", container.id)
        assert code == "0\n", docker("logs", container.id)
