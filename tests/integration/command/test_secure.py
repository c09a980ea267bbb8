"""`aerobee up --secure` (*Try it* of docs/security.md): TLS at every port, and who may call."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import grpc
import pytest
from aerobee.namesrv.v1.namesrv_pb2 import RegisterBrokerRequest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aerobee_cli.authority import Authority
from aerobee_client import (
    AdminClient,
    Credentials,
    Message,
    MqError,
    NamesrvUnreachable,
    Producer,
    SimpleConsumer,
    Tls,
)
from aerobee_client.admin.descriptions import PolicyDescription
from aerobee_client.cluster.transport import GrpcTransport
from aerobee_wire.audit import REJECTED, Chain
from aerobee_wire.rpcs import (
    FOLLOW,
    GET_BROKER_STATUS,
    GET_SNAPSHOT,
    HAND_OVER,
    PROMOTE,
    REGISTER_BROKER,
)
from aerobee_wire.status import Code
from support.clock.polling import until_sync
from support.codes import raises_code
from support.permissions.page import method_of
from support.processes.command import Up, aerobee, aerobee_json, found_by_doctor
from support.processes.service import ServiceProcess
from support.proxy.client import METADATA, Client, signed

TOPIC, GROUP = "orders", "billing"


def certificates(directory: Path, role: str = "admin") -> Tls:
    return Tls(directory / "ca.crt", directory / f"{role}.crt", directory / f"{role}.key")


class Closed:
    """A suite with closed ports, and the directory of its certificates."""

    def __init__(self, up: Up, data: Path) -> None:
        self.up = up
        self.directory = data / "secure"
        self.tls = certificates(self.directory)


@pytest.fixture(scope="module", params=["three processes", "--one-process", "--replicas=3"])
def closed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Closed]:
    data = tmp_path_factory.mktemp("up")
    arguments = [request.param] if request.param.startswith("--") else []
    with Up(data, "--secure", *arguments) as up:
        yield Closed(up, data)


def test_a_client_with_a_certificate_sends_and_receives(closed: Closed) -> None:
    namesrv, tls = closed.up.namesrv, closed.tls
    with AdminClient(namesrv, tls=tls) as admin:
        admin.create_topic(TOPIC)
        admin.create_group(GROUP)
    with Producer(namesrv=namesrv, tls=tls) as producer:
        producer.send(Message(TOPIC, b"42 apples"))
    with SimpleConsumer(GROUP, namesrv=namesrv, tls=tls) as consumer:
        consumer.subscribe(TOPIC)
        (message,) = until_sync(consumer.receive)
        assert message.body == b"42 apples"
        consumer.ack(message)


def test_a_client_that_is_not_admin_sends_and_receives_and_no_more(closed: Closed) -> None:
    namesrv, client = closed.up.namesrv, certificates(closed.directory, "client")
    with AdminClient(namesrv, tls=closed.tls) as admin:
        admin.create_topic("parcels")
        admin.create_group("depot")
    with Producer(namesrv=namesrv, tls=client) as producer:
        producer.send(Message("parcels", b"7 parcels"))
    with SimpleConsumer("depot", namesrv=namesrv, tls=client) as consumer:
        consumer.subscribe("parcels")
        (message,) = until_sync(consumer.receive)
        consumer.ack(message)
    with AdminClient(namesrv, tls=client) as admin:
        assert "parcels" in {each.topic for each in admin.list_topics()}
        assert admin.get_group("depot").consumer_group == "depot"
        for change in (
            lambda: admin.create_topic("others"),
            lambda: admin.delete_topic("parcels"),
            lambda: admin.delete_group("depot"),
        ):
            with raises_code(Code.NO_PERMISSION):
                change()
    until_sync(lambda: "call_rejected" in closed.up.stderr)


def test_a_user_does_what_its_policies_allow(closed: Closed, tmp_path: Path) -> None:
    """The user signs calls to name servers and brokers, and has no certificate."""
    namesrv, tls = closed.up.namesrv, Tls(closed.tls.ca)
    secret = tmp_path / "trains.secret"
    secret.write_text("a secret key\n", encoding="ascii")
    secret.chmod(0o600)
    credentials = Credentials("trains", secret_key_file=str(secret))
    with AdminClient(namesrv, tls=closed.tls) as admin:
        admin.create_topic("trains")
        admin.create_topic("planes")
        admin.create_group("station")
        admin.create_user("trains", "a secret key")
        rights = (("Topic:trains", ("Pub", "Sub", "List")), ("Group:station", ("Sub",)))
        admin.create_policies("trains", [PolicyDescription(*each) for each in rights])
        with Producer(namesrv=namesrv, tls=tls, credentials=credentials) as producer:
            until_sync(lambda: sent(producer, "trains"))
            for topic in ("planes", "missing", "TBW102"):
                with raises_code(Code.NO_PERMISSION):
                    producer.send(Message(topic, b"42"))
        with AdminClient(namesrv, tls=tls, credentials=credentials) as own:
            assert own.topic_names() == ["trains"]
            assert [each.topic for each in own.list_topics()] == ["trains"]
            with raises_code(Code.NO_PERMISSION):
                own.delete_topic("trains")
        for wrong in (None, Credentials("trains", "another key"), Credentials("x", "a secret key")):
            with (
                AdminClient(namesrv, tls=tls, credentials=wrong) as stranger,
                raises_code(Code.NO_PERMISSION),
            ):
                stranger.topic_route("trains")
        with SimpleConsumer(
            "station", namesrv=namesrv, tls=tls, credentials=credentials
        ) as consumer:
            consumer.subscribe("trains")
            (message,) = until_sync(consumer.receive)
            consumer.ack(message)
            # A poll that waits ends with its user, and is not answered without messages.
            with ThreadPoolExecutor() as pool:
                poll = pool.submit(consumer.receive, wait=timedelta(seconds=2))
                admin.update_user("trains", enabled=False)
                with raises_code(Code.NO_PERMISSION):
                    poll.result()


def sent(producer: Producer, topic: str) -> bool:
    """Whether a message was sent: a user and its policies arrive at brokers within 2 s."""
    try:
        producer.send(Message(topic, b"42"))
    except MqError as error:
        if error.code is not Code.NO_PERMISSION:
            raise
        return False
    return True


def test_the_proxy_serves_users_and_no_unsigned_call(closed: Closed) -> None:
    with AdminClient(closed.up.namesrv, tls=closed.tls) as admin:
        admin.create_topic("flights")
        admin.create_user("sdk", "a secret key", super=True)
    with Client(closed.up.proxy, (closed.directory / "ca.crt").read_bytes()) as client:
        request = s.QueryRouteRequest(topic=d.Resource(name="flights"), endpoints=client.endpoints)

        def answer(metadata: tuple[tuple[str, str], ...]) -> int:
            return int(client.stub.QueryRoute(request, metadata=metadata, timeout=20).status.code)

        until_sync(lambda: answer(signed("sdk", "a secret key")) == d.Code.OK)
        assert answer(METADATA) == d.Code.UNAUTHORIZED
        assert answer(signed("sdk", "another")) == d.Code.UNAUTHORIZED


def test_no_port_answers_in_plaintext(closed: Closed) -> None:
    ports = [closed.up.namesrv, *closed.up.broker.split(","), closed.up.proxy]
    for address in ports:
        with grpc.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                health.Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, address


def test_name_server_and_broker_refuse_a_client_without_certificate_and_user(
    closed: Closed, tmp_path: Path
) -> None:
    assert aerobee("certs", "init", str(tmp_path / "secure")).returncode == 0
    other = certificates(tmp_path / "secure")
    own = closed.tls
    foreign = Tls(own.ca, other.certificate, other.key)
    for tls in (None, other, foreign):
        with (
            AdminClient(closed.up.namesrv, tls=tls) as admin,
            pytest.raises(NamesrvUnreachable),
        ):
            admin.list_topics()
    with AdminClient(closed.up.namesrv, tls=Tls(own.ca)) as admin, raises_code(Code.NO_PERMISSION):
        admin.list_topics()
    for broker in closed.up.broker.split(","):
        assert answers(broker, own)
        assert not answers(broker, Tls(own.ca)) and not answers(broker, foreign)


def test_false_broker(closed: Closed) -> None:
    """A process with another name or role is no broker of a group, and the audit log says so."""
    authority = Authority(closed.directory, datetime.now(UTC))
    authority.issue("broker", "broker-x", ["localhost"], 1)
    name = authority.list()[0].cluster
    broker, *replicas = closed.up.broker.split(",")
    with AdminClient(closed.up.namesrv, tls=closed.tls) as admin:
        before = admin.cluster().brokers
    victim = next(each.broker_name for each in before)
    calls: list[tuple[str, str, Any]] = [
        (closed.up.namesrv, REGISTER_BROKER.path, RegisterBrokerRequest(broker_name=victim)),
    ]
    if replicas:  # other brokers do not serve them
        of_replicas = (GET_SNAPSHOT, FOLLOW, HAND_OVER, PROMOTE)
        calls += [(broker, rpc.path, None) for rpc in of_replicas]
    for role in ("broker-x", "client"):
        for address, path, request in calls:
            assert refused(address, path, request, certificates(closed.directory, role)), path
    with AdminClient(closed.up.namesrv, tls=closed.tls) as admin:
        assert {each.broker_name for each in admin.cluster().brokers} == {victim}
    file = closed.directory.parent / "audit"
    for holder in (f"aerobee://{name}/broker/broker-x", f"aerobee://{name}/client/client"):
        rejected = {
            line["rpc"].rpartition("/")[2]
            for log in ("namesrv.log", "broker.log")
            for line in Chain().check((file / log).open("rb"))
            if line["event"] == REJECTED and line["certificate"] == holder
        }
        assert {path.rpartition("/")[2] for _, path, _ in calls} <= rejected


async def test_false_broker_is_not_called_for_another_one(closed: Closed) -> None:
    """A client that knows from a route who answers at an address accepts no other certificate."""
    transport = GrpcTransport.of(closed.tls, None)
    address, *_ = closed.up.broker.split(",")
    request = GET_BROKER_STATUS.request()
    try:
        status = await transport.call(address, GET_BROKER_STATUS, request, timeout_s=10)
        transport.expect(address, status.broker_name)
        await transport.call(address, GET_BROKER_STATUS, request, timeout_s=10)
        transport.expect(address, "broker-x")
        with raises_code(Code.BROKER_UNREACHABLE) as caught:
            await transport.call(address, GET_BROKER_STATUS, request, timeout_s=10)
        assert "its certificate has another name" in str(caught.value)
    finally:
        await transport.close()


def refused(address: str, path: str, request: Any, tls: Tls) -> bool:
    """Whether a call is refused because of who makes it."""
    pem = [Path(each).read_bytes() for each in (tls.ca, tls.key, tls.certificate)]
    target = method_of(path)
    given = b"" if request is None else request.SerializeToString()
    role = "namesrv" if "namesrv" in path.rpartition("/")[0] else "broker"
    name = (("grpc.ssl_target_name_override", f"{role}.DefaultCluster.aerobee"),)
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(*pem), name) as channel:
        if target.client_streaming:
            call = channel.stream_stream(path, None, None)(iter([given]), timeout=30)
        else:
            call = channel.unary_stream(path, None, None)(given, timeout=30)
        try:
            list(call)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.PERMISSION_DENIED)
        return False


def test_audit_logs_have_changes(closed: Closed) -> None:
    with AdminClient(closed.up.namesrv, tls=closed.tls) as admin:
        admin.create_topic("audited")
    files = {file.name: file for file in (closed.directory.parent / "audit").glob("*.log")}
    brokers = closed.up.broker.split(",")
    further = {f"broker-{number}.log" for number in range(1, len(brokers))}
    assert files.keys() == {"namesrv.log", "broker.log", "proxy.log", *further}
    found = [line for file in files.values() for line in Chain().check(file.open("rb"))]
    assert "Topic:audited" in {each for line in found for each in line.get("resources", ())}


def answers(broker: str, tls: Tls) -> bool:
    """Whether a broker answers a caller with these certificates."""
    paths = (tls.ca, tls.key, tls.certificate)
    pem = [Path(path).read_bytes() if str(path) else None for path in paths]
    name = (("grpc.ssl_target_name_override", "broker.DefaultCluster.aerobee"),)
    with grpc.secure_channel(broker, grpc.ssl_channel_credentials(*pem), name) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check.future(
            health_pb2.HealthCheckRequest(), timeout=10
        )
        return check.exception() is None


def test_the_command_reads_the_variables(closed: Closed, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in (closed.directory / "admin.env").read_text().splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value)
    assert aerobee_json("cluster", "list", namesrv=closed.up.namesrv)
    done = aerobee("doctor", "--json", namesrv=closed.up.namesrv)
    assert found_by_doctor(done.stdout) == [], done.stderr


def test_the_command_reads_a_context(
    closed: Closed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "ops.secret"
    secret.write_text("a secret key\n", encoding="ascii")
    secret.chmod(0o600)
    monkeypatch.setenv("AEROBEE_CONTEXT_DIR", str(tmp_path / "contexts"))
    with AdminClient(closed.up.namesrv, tls=closed.tls) as admin:
        admin.create_user("ops", "a secret key", super=True)
    given = ("--namesrv", closed.up.namesrv, "--tls-ca", str(closed.tls.ca), "--use")
    user = ("--access-key", "ops", "--secret-key-file", str(secret))
    made = aerobee("context", "add", "local", *given, *user)
    assert made.returncode == 0, made.stderr
    until_sync(lambda: aerobee("topic", "create", "packages").returncode == 0, "the user")
    assert "packages" in aerobee("topic", "list").stdout
    # A proxy knows the user 2 s later at most.
    asked = ("doctor", "--from", closed.up.proxy, "--topic", "packages")
    until_sync(lambda: aerobee(*asked).returncode == 0, "the proxy's answer")
    monkeypatch.setenv("AEROBEE_CONTEXT_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("AEROBEE_TLS_TRUST_CERT_PATH", str(closed.tls.ca))
    unsigned = aerobee(*asked)
    assert (unsigned.returncode, "--access-key" in unsigned.stderr) == (1, True)


def test_renewed_certificates_lose_no_send(closed: Closed) -> None:
    """New connections use the new certificates, and none fails."""
    stop, sent = threading.Event(), []
    failures: list[MqError] = []

    def send() -> None:
        while not stop.is_set():
            with Producer(namesrv=closed.up.namesrv, tls=closed.tls) as producer:
                for number in range(20):
                    try:
                        sent.append(producer.send(Message(TOPIC, b"%d" % number)))
                    except MqError as error:
                        failures.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        until_sync(lambda: sent, "sends go on")
        renewed = aerobee("certs", "renew", str(closed.directory), "--within", "365", "--json")
        assert renewed.returncode == 0, renewed.stderr
        count = len(sent)
        until_sync(lambda: "certificates_reloaded" in closed.up.stderr, "servers read them")
        until_sync(lambda: len(sent) > count + 100, "sends go on after it")
    finally:
        stop.set()
        sender.join()
    assert not failures


def test_users_reach_all_processes_with_certificates_only(closed: Closed) -> None:
    """The roles of name servers and brokers may exchange secrets, and a client's role may not."""
    name = "billing"
    with AdminClient(closed.up.namesrv, tls=closed.tls) as admin:
        change = admin.create_user(name, "s3cret")
        if change.lacking:  # on a busy machine
            until_sync(lambda: not admin.update_user(name, enabled=True).lacking, "the change")
        admin.delete_user(name)
    with (
        AdminClient(closed.up.namesrv, tls=certificates(closed.directory, "client")) as client,
        raises_code(Code.NO_PERMISSION),
    ):
        client.list_users()


class Browser:
    """Requests with cookies to a console."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = build_opener(HTTPCookieProcessor())

    def get(self, address: str, fields: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Return the status and text of an address; `fields` are those of a form to send."""
        data = urlencode(fields).encode() if fields else None
        request = Request(self._url + address, data, {"origin": self._url})
        try:
            with self._opener.open(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("closed", ["--one-process"], indirect=True)
def test_a_user_logs_in_to_the_console(closed: Closed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEROBEE_TLS_TRUST_CERT_PATH", str(closed.directory / "ca.crt"))
    with AdminClient(closed.up.namesrv, tls=closed.tls) as admin:
        admin.create_topic("parcels")
        admin.create_user("reader", "a secret key")
        rights = (("Cluster:*", ("Get",)), ("Topic:*", ("Get", "List")))
        admin.create_policies("reader", [PolicyDescription(*each) for each in rights])
    arguments = ("--port", "0", "--namesrv", closed.up.namesrv, "--login")
    with ServiceProcess("aerobee_console", *arguments) as console:
        browser = Browser(f"http://{console.address}")
        token = browser.get("/login")[1].partition('csrf_token" value="')[2].partition('"')[0]
        fields = {"user": "reader", "csrf_token": token}
        assert browser.get("/api/v1/topics")[0] == 401
        assert browser.get("/login", fields | {"secret": "another key"})[0] == 403
        # The browser follows the answer to the overview.
        status, overview = browser.get("/login", fields | {"secret": "a secret key"})
        assert status == 200 and "Overview" in overview
        status, topics = browser.get("/topics")
        assert status == 200 and "parcels" in topics and "/new-topic" not in topics
        status, refused = browser.get("/groups/billing")
        assert status == 403 and "reader" in refused
