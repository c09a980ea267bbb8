"""docker-compose.secure.yml with a real engine: every port is closed to a stranger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_client import AdminClient, Message, NamesrvUnreachable, Producer, SimpleConsumer, Tls
from support.clock.polling import until_sync
from support.processes.command import found_by_doctor
from support.processes.compose import Project
from support.processes.engine import require_engine
from support.proxy.client import METADATA, Client, signed

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    require_engine()
    made = Project(tmp_path_factory.mktemp("compose"), overlay="docker-compose.secure.yml")
    with made.running():
        yield made


@pytest.fixture(scope="module")
def tls(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Tls:
    copy = tmp_path_factory.mktemp("copy") / "certs"
    project.run("cp", "broker:/secure/certs", str(copy))
    return Tls(copy / "ca.crt", copy / "admin.crt", copy / "admin.key")


def test_a_client_with_the_copied_certificate_is_served(project: Project, tls: Tls) -> None:
    namesrv = f"127.0.0.1:{project.ports['namesrv']}"
    with AdminClient(namesrv, tls=tls) as admin:
        admin.create_topic("orders")
        admin.create_group("billing")
    with Producer(namesrv=namesrv, tls=tls) as producer:
        producer.send(Message("orders", b"42 apples"))
    with SimpleConsumer("billing", namesrv=namesrv, tls=tls) as consumer:
        consumer.subscribe("orders")
        (message,) = until_sync(consumer.receive)
        assert message.body == b"42 apples"
        consumer.ack(message)


def test_a_stranger_is_not(project: Project, tls: Tls) -> None:
    namesrv = f"127.0.0.1:{project.ports['namesrv']}"
    for given in (None, Tls(tls.ca)):
        with AdminClient(namesrv, tls=given) as admin, pytest.raises(NamesrvUnreachable):
            admin.list_topics()


def test_the_proxy_serves_the_first_user_and_no_unsigned_call(project: Project, tls: Tls) -> None:
    (user,) = json.loads(Path(tls.ca).with_name("users.json").read_text())["users"]
    address = f"127.0.0.1:{project.ports['proxy']}"
    with Client(address, Path(tls.ca).read_bytes()) as client:
        request = s.QueryRouteRequest(topic=d.Resource(name="orders"), endpoints=client.endpoints)
        for metadata, code in (
            (METADATA, d.Code.UNAUTHORIZED),
            (signed(user["username"], user["password"]), d.Code.OK),
        ):
            answer = client.stub.QueryRoute(request, metadata=metadata, timeout=20)
            assert answer.status.code == code, answer.status


def test_a_service_that_is_open_would_not_start(project: Project) -> None:
    """The overlay takes back what lets the services of docker-compose.yml start."""
    for service in ("namesrv", "broker", "proxy"):
        output, _ = project.inside(service, "printenv", "AEROBEE_INSECURE", stderr=DEVNULL)
        assert output.strip() == "false"


def test_the_command_works_in_every_container(project: Project) -> None:
    for service in ("namesrv", "broker", "proxy"):
        output, _ = project.inside(service, "aerobee", "doctor", "--json", stderr=DEVNULL)
        assert found_by_doctor(output) == []


def test_a_second_start_keeps_the_certificates(project: Project, tls: Tls, tmp_path: Path) -> None:
    project.run("up", "--detach", "--wait", "--force-recreate")
    project.run("cp", "broker:/secure/certs", str(tmp_path / "certs"))
    assert (tmp_path / "certs" / "ca.crt").read_bytes() == Path(tls.ca).read_bytes()
