"""docker-compose.yml with a real engine: built, started, used from the host, killed, stopped.

One project for the whole module, and one with the profile `replicated` behind it, each with a name,
ports and images of its own, so that it disturbs no other. Without an engine these tests are
skipped, unless AEROBEE_REQUIRE_ENGINE says that there must be one.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from aerobee.broker.v1 import admin_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from packaging.utils import canonicalize_name

from aerobee_chassis import healthcheck
from aerobee_cli.commands.doctor import FOUND
from support.clock.polling import until_sync
from support.processes.compose import Project
from support.processes.engine import require_engine
from support.proxy import sdk_cluster
from support.proxy.official_sdk import Sdk, SdkError, newest
from support.repository.tree import ROOT, locked
from support.stubs import Stub

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TOPIC = "compose"
CALL_TIMEOUT_S = 10.0
SOON_S = 60.0
BASE_IMAGE = "python:3.11-slim-bookworm"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    require_engine()
    made = Project(tmp_path_factory.mktemp("compose"))
    with made.running():
        yield made


def broker_address(project: Project) -> str:
    """Where a classic client would go: what the route of a topic says."""
    with grpc.insecure_channel(f"127.0.0.1:{project.ports['namesrv']}") as channel:
        stub = Stub(namesrv_pb2, channel)
        info = stub.GetClusterInfo(namesrv_pb2.GetClusterInfoRequest(), timeout=CALL_TIMEOUT_S)
    [broker] = info.brokers
    return str(broker.addresses[0])


def create(address: str, topic: str) -> None:
    config = namesrv_pb2.TopicConfig(
        topic=topic, read_queue_count=4, write_queue_count=4, permission=6
    )
    with grpc.insecure_channel(address) as channel:
        stub = Stub(admin_pb2, channel)
        stub.PutTopic(admin_pb2.PutTopicRequest(topic=config), timeout=CALL_TIMEOUT_S)


def send(address: str, *bodies: bytes) -> list[int]:
    """Sends to queue 0 of the topic; the queue offsets."""
    messages = [message_pb2.Message(topic=TOPIC, queue_id=0, body=body) for body in bodies]
    with grpc.insecure_channel(address) as channel:
        stub = Stub(message_pb2, channel)
        request = message_pb2.SendRequest(producer_group="compose-test", messages=messages)
        response = stub.Send(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
    return [result.queue_offset for result in response.results]


def pull(address: str) -> list[bytes]:
    """All bodies of queue 0 of the topic."""
    with grpc.insecure_channel(address) as channel:
        stub = Stub(message_pb2, channel)
        request = message_pb2.PullRequest(
            topic=TOPIC, queue_id=0, max_messages=1_000, plain=True, browse=True
        )
        response = stub.Pull(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
    return [message.body for message in response.messages]


def bodies(messages: list[Any]) -> list[str]:
    """Of what an SDK received, sorted."""
    return sorted(sdk_cluster.bodies_of(messages))


def state(project: Project, service: str) -> dict[str, object]:
    """What the engine says of the container, running or not."""
    container = project.run("ps", "--all", "--quiet", service).strip()
    answer = subprocess.run(
        ["docker", "inspect", "--format", "{{json .State}}", container],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return dict(json.loads(answer.stdout))


@pytest.mark.parametrize("service", ["namesrv", "broker", "proxy"])
def test_a_service_runs_with_no_rights_that_it_does_not_need(
    project: Project, service: str
) -> None:
    assert project.inside(service, "id", "-u") == ("10001\n", 0)
    _, code = project.inside(service, "touch", "/opt/aerobee/x")
    assert code != 0
    assert project.inside(service, "sh", "-c", "touch /data/x && rm /data/x") == ("", 0)


def test_the_image_holds_servers_and_command_and_what_they_import(project: Project) -> None:
    """No Spark, no tools: the packages of the image's lock and ours, each once."""
    script = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    output, code = project.inside("broker", "python", "-c", script)
    assert code == 0, output
    installed = [canonicalize_name(name) for name in output.split()]
    wanted = locked(ROOT / "deploy" / "requirements-services.lock").keys()
    assert sorted(installed) == sorted({*wanted, "aerobee", "aerobee-client"})


def test_the_image_lacks_nothing_that_our_modules_import(project: Project) -> None:
    """The Dockerfile removes parts of packages."""
    script = """
import importlib, importlib.metadata, pkgutil
from rich.console import Console
from rich.traceback import Traceback
for package in sorted(importlib.metadata.packages_distributions()):
    if package.startswith("aerobee_"):
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, package + "."):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except ImportError as error:
                    print(error)
try:
    1 / 0
except ZeroDivisionError:
    Console(width=200).print(Traceback())
"""
    output, code = project.inside("broker", "python", "-c", script)
    assert code == 0 and "ZeroDivisionError" in output, output
    optional = ("No module named 'pytest'", "testcontainers is not installed", "OpenTelemetry")
    missing = [line for line in output.splitlines() if "No module" in line]
    assert [line for line in missing if not line.startswith(optional)] == []


def test_the_image_is_at_most_120_mb_larger_than_its_base(project: Project) -> None:
    layers = subprocess.run(
        ["docker", "history", "--human=false", "--format", "{{.Size}}", project.images[0]],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    base = subprocess.run(
        ["docker", "history", "--human=false", "--format", "{{.Size}}", BASE_IMAGE],
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    assert layers[-len(base) :] == base
    assert sum(map(int, layers[: -len(base)])) <= 120_000_000


@pytest.mark.parametrize("service", ["namesrv", "broker", "proxy"])
def test_the_command_is_in_every_container_and_finds_the_name_server(
    project: Project, service: str
) -> None:
    made = project.inside(service, "aerobee", "topic", "create", f"by-{service}", "--json")
    assert made[1] == 0 and json.loads(made[0])[0]["created"], made
    listed, code = project.inside(service, "aerobee", "topic", "list", "--json")
    assert code == 0 and f"by-{service}" in {topic["topic"] for topic in json.loads(listed)}
    report, code = project.inside(service, "aerobee", "report", "--group", "g")
    assert code == 1 and report.startswith("error: ") and report.count("\n") == 1, report
    assert "pip install 'aerobee-spark[local]'" in report


def test_open_services_say_so(project: Project) -> None:
    for service in project.ports:
        assert '"event": "insecure"' in project.get_logs(service)[0]
    report, code = project.inside(
        "broker", "aerobee", "doctor", "--json", stderr=subprocess.DEVNULL
    )
    checks = {finding["check"] for finding in json.loads(report)}
    assert code == FOUND and {"name server", "broker"} <= checks


def test_ports_are_published_on_loopback_only(project: Project) -> None:
    published = {
        service: {
            (port.URL, port.PublishedPort)
            for port in project.get_container(service).Publishers
            if port.PublishedPort
        }
        for service in project.ports
    }
    assert published == {s: {("127.0.0.1", port)} for s, port in project.ports.items()}


def test_the_console_shows_the_broker_to_a_browser_on_the_host(project: Project) -> None:
    url = f"http://127.0.0.1:{project.ports['console']}/brokers"
    with urllib.request.urlopen(url, timeout=SOON_S) as answer:
        page = answer.read().decode()
    assert "broker-a" in page and "accepts messages" in page


def test_an_unhealthy_broker_would_be_seen(project: Project) -> None:
    """The health check asks grpc.health.v1: it tells a port that serves from one that does not."""
    check = ("python", "-m", "aerobee_chassis.healthcheck")
    assert project.inside("broker", *check, f"127.0.0.1:{project.ports['broker']}") == (
        "serving\n",
        0,
    )
    _, code = project.inside("broker", *check, "127.0.0.1:1")
    assert code == 1


def test_the_routed_address_serves_the_host_and_the_other_containers(project: Project) -> None:
    address = broker_address(project)
    body = uuid.uuid4().bytes
    send(address, body)
    assert body in pull(address)
    health = ("python", "-m", "aerobee_chassis.healthcheck", address)
    assert project.inside("namesrv", *health) == ("serving\n", 0)


def test_the_published_port_serves_the_host(project: Project) -> None:
    body = uuid.uuid4().bytes
    send(f"127.0.0.1:{project.ports['broker']}", body)
    assert body in pull(f"127.0.0.1:{project.ports['broker']}")


@pytest.mark.parametrize("language", ["python", "node"])
def test_an_official_sdk_on_the_host_sends_and_receives_at_the_proxy(
    project: Project, tmp_path: Path, language: str
) -> None:
    """The proxy tells it to come back to the published port."""
    with Sdk(newest(language), f"127.0.0.1:{project.ports['proxy']}", tmp_path) as sdk:
        topic = f"sdk-{language}"
        with pytest.raises(SdkError):  # no topic is created by its first use
            sdk_cluster.send(sdk, topic, 1)
        create(f"127.0.0.1:{project.ports['broker']}", topic)
        sdk_cluster.simple(sdk, f"{topic}-readers", topic)
        sent = sdk_cluster.send(sdk, topic, 10)
        assert bodies(sdk_cluster.receive(sdk, 10)) == sorted(sent)
        sdk.do("push", id="p2", group=f"{topic}-listeners", subscriptions={topic: sdk_cluster.ALL})
        assert bodies(sdk_cluster.delivered(sdk, "p2", 10)) == sorted(sent)


def test_the_proxy_s_port_takes_tls_and_plaintext(project: Project) -> None:
    proxy = ("127.0.0.1", project.ports["proxy"])
    credentials = grpc.ssl_channel_credentials(ssl.get_server_certificate(proxy).encode())
    with grpc.secure_channel(f"localhost:{proxy[1]}", credentials) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert healthcheck.serving(f"127.0.0.1:{proxy[1]}")


def test_acknowledged_messages_survive_kill_9_of_the_broker(project: Project) -> None:
    published = f"127.0.0.1:{project.ports['broker']}"
    bodies = [f"before-{number}".encode() for number in range(50)]
    offsets = send(published, *bodies)
    project.run("kill", "--signal", "SIGKILL", "broker")
    assert state(project, "broker")["ExitCode"] == 137
    project.run("up", "--detach", "--wait", "--no-build")
    kept = pull(broker_address(project))
    assert [body for body in kept if body.startswith(b"before-")] == bodies
    assert send(published, b"after") == [offsets[-1] + 1]


def test_a_broker_that_died_is_started_again_by_the_engine(project: Project) -> None:
    """Not by us: the process is killed from within, as when memory runs out."""
    before = state(project, "broker")
    # Every process but the container's first, which is the engine's init.
    project.inside("broker", "sh", "-c", "kill -9 -1")
    project.run("up", "--detach", "--wait", "--no-build", "--no-recreate")
    after = state(project, "broker")
    assert after["StartedAt"] != before["StartedAt"]
    assert pull(broker_address(project))


@pytest.mark.parametrize(
    ("host", "reached_from"), [("127.0.0.1", "the host"), ("broker", "another container")]
)
def test_what_the_broker_advertises_can_be_chosen(
    project: Project, host: str, reached_from: str
) -> None:
    """docs/configuration.md, "From where the broker can be reached": one port on either side."""
    alone = ("--no-deps", "broker")
    project.run("up", "--detach", "--wait", "--no-build", *alone, AEROBEE_BROKER_HOST=host)
    address = broker_address(project)
    assert address == f"{host}:{project.ports['broker']}"
    if reached_from == "the host":
        assert pull(address)  # what was sent before the container was replaced is there
    else:
        health = ("python", "-m", "aerobee_chassis.healthcheck", address)
        assert project.inside("namesrv", *health) == ("serving\n", 0)


@pytest.mark.parametrize("service", ["namesrv", "broker", "proxy"])
def test_a_healthy_container_is_not_checked_every_second(project: Project, service: str) -> None:
    """deploy/healthy: a check that succeeds again waits."""
    health = state(project, service)["Health"]
    assert isinstance(health, dict) and health["Status"] == "healthy"
    until_sync(lambda: "sleep" in project.run("top", service), "a check waits", timeout_s=SOON_S)


def test_services_stop_in_order_when_asked(project: Project) -> None:
    project.run("stop")
    for service in project.ports:
        assert state(project, service)["ExitCode"] == 0, service
        assert '"event": "stopped"' in project.get_logs(service)[0], service


def test_the_services_go_down(project: Project) -> None:
    """Last of this project."""
    project.run("down")
    assert project.containers() == []


# ---- the profile `replicated` ----

ETCD = [f"etcd-{number}" for number in (1, 2, 3)]
REPLICAS = [f"broker-b{number}" for number in (1, 2, 3)]


@pytest.fixture
def replicated(tmp_path: Path, project: Project) -> Iterator[Project]:
    """Behind `project`, whose image is the same: its build is done."""
    made = Project(tmp_path, profiles=["replicated"])
    up = ("--profile", "replicated", "up", "--scale", "broker=0")
    try:
        try:
            made.run(*up, "--detach", "--wait", "--build")
        except subprocess.CalledProcessError as error:
            print(error.stderr, made.run("logs"))
            raise
        yield made
    finally:
        made.remove()


@pytest.mark.parametrize("by", ["profile", "name"])
def test_every_container_of_a_group_without_the_single_broker_goes_down(
    replicated: Project, tmp_path: Path, by: str
) -> None:
    """By the name alone, Compose reads the labels of the containers instead of the file."""
    assert len(replicated.containers()) == len(["namesrv", "proxy", "console", *ETCD, *REPLICAS])
    if by == "profile":
        replicated.run("--profile", "replicated", "down")
    else:
        folder = tmp_path / "empty"
        folder.mkdir()
        subprocess.run(
            ["docker", "compose", "--project-name", replicated.name, "down"], cwd=folder, check=True
        )
    assert replicated.containers() == []


def replicas(project: Project) -> dict[int, dict[str, Any]]:
    """What those that answer say, by replica id; nothing while no name server knows one."""
    command = ("aerobee", "broker", "ha-status", "broker-b", "--json")
    found, _ = project.inside("namesrv", "sh", "-c", f"{' '.join(command)} 2>/dev/null")
    return {each["replica_id"]: each for each in json.loads(found or "[]")}


def in_sync(project: Project) -> set[int]:
    return {number for number, each in replicas(project).items() if each["in_sync"]}


def test_a_group_of_three_goes_on_when_the_container_of_its_master_is_killed(
    replicated: Project, tmp_path: Path
) -> None:
    for service in (*ETCD, *REPLICAS):
        assert replicated.inside(service, "id", "-u") == ("10001\n", 0)
        assert replicated.inside(service, "touch", "/opt/x")[1] != 0
    until_sync(lambda: in_sync(replicated) == {1, 2, 3}, "all are in sync", timeout_s=SOON_S)
    made, code = replicated.inside("broker-b1", "aerobee", "topic", "create", TOPIC)
    assert code == 0, made
    [master] = [each for each in replicas(replicated).values() if each["role"] == "master"]
    assert (master["required_replicas"], master["elected"]) == (2, True)
    proxy = f"127.0.0.1:{replicated.ports['proxy']}"
    sent: list[str] = []
    with Sdk(newest("python"), proxy, tmp_path) as sdk:
        sent += sdk_cluster.send(sdk, TOPIC, 20)

        replicated.run("kill", "--signal", "SIGKILL", f"broker-b{master['replica_id']}")

        def send_one() -> int:
            body = f"after {len(sent)}"
            sdk.do("send", id="p", topic=TOPIC, body=body)
            sent.append(body)
            return len(sent)

        until_sync(lambda: send_one() >= 40, "sends", timeout_s=SOON_S, retry_on=(SdkError,))
        left = {1, 2, 3} - {master["replica_id"]}
        until_sync(lambda: in_sync(replicated) == left, "another one leads", timeout_s=SOON_S)
        sdk_cluster.simple(sdk, "readers", TOPIC)
        got: set[str] = set()

        def everything() -> bool:
            got.update(bodies(sdk_cluster.receive(sdk, 1)))
            return got >= {*sent}

        until_sync(everything, "everything is received", timeout_s=SOON_S)
