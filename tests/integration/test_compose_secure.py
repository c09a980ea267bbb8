"""docker-compose.secure.yml with a real engine: every port is closed to a stranger."""

from __future__ import annotations

import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_client import AdminClient, Message, NamesrvUnreachable, Producer, SimpleConsumer, Tls
from aerobee_wire.status import Code
from support.clock.polling import until_sync
from support.codes import raises_code
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
    with AdminClient(namesrv) as admin, pytest.raises(NamesrvUnreachable):
        admin.list_topics()
    with AdminClient(namesrv, tls=Tls(tls.ca)) as admin, raises_code(Code.NO_PERMISSION):
        admin.list_topics()


def test_the_proxy_serves_users_and_no_unsigned_call(project: Project, tls: Tls) -> None:
    command = ("aerobee", "user", "create", "sdk", "--super", "--generate", "--json")
    made, code = project.inside("broker", *command, stderr=DEVNULL)
    assert code == 0, made
    secret = json.loads(made)["secret_key"]
    address = f"127.0.0.1:{project.ports['proxy']}"
    with Client(address, Path(tls.ca).read_bytes()) as client:
        request = s.QueryRouteRequest(topic=d.Resource(name="orders"), endpoints=client.endpoints)

        def answer(metadata: tuple[tuple[str, str], ...]) -> int:
            return int(client.stub.QueryRoute(request, metadata=metadata, timeout=20).status.code)

        until_sync(lambda: answer(signed("sdk", secret)) == d.Code.OK)
        assert answer(METADATA) == d.Code.UNAUTHORIZED


def test_the_console_serves_who_logs_in_and_no_stranger(project: Project, tls: Tls) -> None:
    command = ("aerobee", "user", "create", "ops", "--super", "--generate", "--json")
    made, code = project.inside("broker", *command, stderr=DEVNULL)
    assert code == 0, made
    secret = json.loads(made)["secret_key"]
    with AdminClient(f"127.0.0.1:{project.ports['namesrv']}", tls=tls) as admin:
        admin.create_topic("parcels")
    url = f"https://127.0.0.1:{project.ports['console']}"
    context = ssl.create_default_context(cafile=tls.ca)
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), urllib.request.HTTPCookieProcessor()
    )

    def get(address: str) -> str:
        return str(opener.open(url + address, timeout=30).read().decode())

    stranger = get("/topics")
    assert "parcels" not in stranger and "Secret key" in stranger
    found = re.search(r'name="csrf_token" value="([^"]+)"', stranger)
    assert found is not None
    fields = {"csrf_token": found[1], "user": "ops", "secret": "another key", "next": "/topics"}

    def log_in() -> str:
        data = urllib.parse.urlencode(fields).encode()
        request = urllib.request.Request(f"{url}/login", data, {"Origin": url})
        return str(opener.open(request, timeout=30).read().decode())

    with pytest.raises(urllib.error.HTTPError) as refused:
        log_in()
    assert refused.value.code == 403
    fields["secret"] = secret
    assert "parcels" in log_in()
    assert "broker-a" in get("/brokers") and "Not complete" not in get("/")
    output, code = project.inside("console", "printenv", "AEROBEE_TLS_CERT_PATH", stderr=DEVNULL)
    assert code != 0, f"the console has a role: {output}"


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
