"""No service shows a secret key, and none writes a body outside of the log: a closed cluster.

`make canary` looks for the same marks in the suites of SDKs and clients.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from aerobee_client import AdminClient, Credentials, Message, MqError, Producer, SimpleConsumer, Tls
from support.clock.polling import until_sync
from support.processes.command import aerobee
from support.processes.service import (
    METRICS,
    ServiceProcess,
    broker_process,
    namesrv_process,
    proxy_process,
    run,
)
from support.proxy.client import Client, signed
from support.running import canary, secure

TOPIC, GROUP, OTHER_SECRET = "orders", "billing", canary.SECRET + "-wrong"
LOUD = "--set=logLevel=debug"


class Closed:
    """The processes of a closed cluster, and callers of it."""

    def __init__(self, data: Path, stack: ExitStack) -> None:
        self.data = data
        self.certificates = secure.Secure(data / "secure")
        audit = [f"--set=auditLogPath={data}/audit-{n}.log" for n in range(3)]
        more = (LOUD, *METRICS, "--set=auditReads=true")
        self.namesrv = self._closed(namesrv_process(data / "namesrv", *more, audit[0]))
        stack.enter_context(self.namesrv)
        self.broker = self._closed(
            broker_process(data / "broker", *more, audit[1], namesrv=self.namesrv.address)
        )
        stack.enter_context(self.broker)
        self.proxy = self._closed(proxy_process(self.namesrv.address, *more, audit[2]))
        stack.enter_context(self.proxy)
        self.processes = [self.namesrv, self.broker, self.proxy]
        names = ("ca.crt", "admin.crt", "admin.key")
        ca, certificate, key = (self.certificates.directory / name for name in names)
        self.admin, self.tls = Tls(ca, certificate, key), Tls(ca)

    def _closed(self, process: ServiceProcess) -> ServiceProcess:
        found = self.certificates.service_environment(process.module, process.arguments)
        process.environment |= found
        return process


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    with ExitStack() as stack:
        yield Closed(tmp_path_factory.mktemp("canary"), stack)


def errors_of(closed: Closed) -> Iterator[str]:
    """Make calls of all kinds, and yield the texts of those that fail."""
    namesrv, body = closed.namesrv.address, canary.BODY.encode()
    right = Credentials(secure.USER, canary.SECRET)
    with AdminClient(namesrv, tls=closed.admin) as admin:
        admin.create_topic(TOPIC)
        admin.create_group(GROUP)
        until_sync(lambda: any(u.username == secure.USER for u in admin.list_users()), "the user")
        admin.create_user("reader", canary.SECRET)
        changes: list[Callable[[], object]] = [
            lambda: admin.create_user("reader", canary.SECRET),
            lambda: admin.create_user("a name", canary.SECRET),
            lambda: admin.update_user("missing", secret=canary.SECRET),
        ]
        for change in changes:
            with pytest.raises(MqError) as caught:
                change()
            yield str(caught.value)
    wrong = (Credentials("reader", canary.SECRET), Credentials("reader", OTHER_SECRET), None)
    for credentials in wrong:
        with Producer(namesrv=namesrv, tls=closed.tls, credentials=credentials) as producer:
            with pytest.raises(MqError) as caught:
                producer.send(Message(TOPIC, body))
            yield str(caught.value)
    with (
        Producer(namesrv=namesrv, tls=closed.tls, credentials=right) as producer,
        SimpleConsumer(GROUP, namesrv=namesrv, tls=closed.tls, credentials=right) as consumer,
    ):
        consumer.subscribe(TOPIC)

        def is_sent() -> bool:
            producer.send(Message(TOPIC, body, keys="k", properties={"p": "v"}))
            return True

        until_sync(is_sent, "the user at the broker", retry_on=(MqError,))
        with pytest.raises(MqError) as caught:
            producer.send(Message("a topic", body))
        yield str(caught.value)
        [message] = until_sync(lambda: consumer.receive(wait=timedelta(seconds=1)), "a message")
        consumer.dead_letter(message, reason="canary")
    with Client(closed.proxy.address, closed.certificates.roots.read_bytes()) as client:
        route = s.QueryRouteRequest(topic=d.Resource(name=TOPIC), endpoints=client.endpoints)
        send = s.SendMessageRequest(messages=[d.Message(topic=route.topic, body=body)])
        for pair in ((secure.USER, canary.SECRET), ("reader", canary.SECRET), ("x", OTHER_SECRET)):
            yield str(client.stub.QueryRoute(route, metadata=signed(*pair), timeout=20))
            yield str(client.stub.SendMessage(send, metadata=signed(*pair), timeout=20))


def reflected(closed: Closed, process: ServiceProcess) -> str:
    tls = closed.admin
    pem = [Path(path).read_bytes() for path in (tls.ca, tls.key, tls.certificate)]
    name = (("grpc.ssl_target_name_override", "localhost"),)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.secure_channel(process.address, grpc.ssl_channel_credentials(*pem), name) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        return str(list(stub.ServerReflectionInfo(iter([request]), timeout=20)))


def test_secrets_and_bodies_stay_where_they_belong(
    closed: Closed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in errors_of(closed):
        canary.check_text(text, "an error")
    for process in closed.processes:
        with urllib.request.urlopen(f"http://{process.ready['metrics']}/metrics") as answer:
            canary.check_text(answer.read().decode(), f"metrics of {process.module}")
        canary.check_command_line(process.pid)
        if process is not closed.proxy:
            canary.check_text(reflected(closed, process), f"reflection of {process.module}")
    for name, value in closed.certificates.client_environment().items():
        monkeypatch.setenv(name, value)
    for command in ("user list", "acl list", "acl export", "cluster list", "audit list"):
        done = aerobee(*command.split(), namesrv=closed.namesrv.address)
        assert done.returncode == 0, done.stderr
        canary.check_text(done.stdout + done.stderr, command)
    for process in closed.processes:
        assert process.stop() == 0
        canary.check_text(process.output, process.module)
    canary.check_files(closed.data)
    kept = {path for path in closed.data.rglob("*") if canary.SECRET.encode() in bytes_of(path)}
    assert {path.name for path in kept} == {"accessTable.json"}, "the marks are found at all"
    logs = [path for path in closed.data.rglob("commitlog/*") if path.is_file()]
    assert any(canary.BODY.encode() in bytes_of(path) for path in logs)


def bytes_of(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


@pytest.mark.parametrize("module", ["aerobee_namesrv", "aerobee_broker", "aerobee_proxy"])
def test_configuration_is_printed_without_secrets(module: str) -> None:
    user = json.dumps({"username": "root", "password": canary.SECRET})
    secrets = {
        "AEROBEE_INIT_AUTHENTICATION_USER": user,
        "AEROBEE_TLS_KEY_PASSWORD": canary.SECRET,
    }
    env = {key: value for key, value in os.environ.items() if not key.startswith("AEROBEE_")}
    done = run(module, "--namesrv", "h:1", "--print-config", env=env | secrets)
    if module == "aerobee_namesrv":  # it has no such option
        done = run(module, "--print-config", env=env | secrets)
    assert done.returncode == 0, done.stderr
    canary.check_text(done.stdout + done.stderr, "--print-config")
