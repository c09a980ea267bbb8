"""A proxy process over the wire: two of them, kill -9, offsets, pulls and malformed frames."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.clock.polling import until_sync
from support.processes.service import (
    METRICS,
    ServiceProcess,
    namesrv_and_broker,
    proxy_process,
    run,
)
from support.proxy.client import METADATA, Client, signed
from support.proxy.fuzz import mutated
from support.proxy.public_requests import VALID

METHODS = s.DESCRIPTOR.services_by_name["MessagingService"].methods


@pytest.fixture(scope="module")
def proxy(namesrv: ServiceProcess) -> Iterator[ServiceProcess]:
    with proxy_process(namesrv.address, *METRICS) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def client(proxy: ServiceProcess) -> Iterator[Client]:
    with Client(proxy.address) as client:
        yield client


@pytest.mark.parametrize("service", ["namesrv", "proxy"])
def test_a_client_without_contracts_calls_by_reflection(
    service: str, request: pytest.FixtureRequest
) -> None:
    """With gRPC's own package. The services of a server are in two descriptor pools."""
    process: ServiceProcess = request.getfixturevalue(service)
    with grpc.insecure_channel(process.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        services = {name: pool.FindServiceByName(name) for name in database.get_services()}
        assert len(services) > 3 and all(each.methods for each in services.values())
        check = pool.FindMethodByName("grpc.health.v1.Health.Check")
        call = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=GetMessageClass(check.input_type).SerializeToString,
            response_deserializer=GetMessageClass(check.output_type).FromString,
        )
        assert call(GetMessageClass(check.input_type)()).status == 1  # SERVING
        with pytest.raises(KeyError):
            database.FindFileContainingSymbol("none.Such")


def test_send_has_an_entry_for_each_message(client: Client) -> None:
    """Row F29 of docs/compatibility.md."""
    queue = client.queue("batches")
    answer = client.send("batches", b"1", b"2", b"3")
    assert answer.status.code == Code.OK
    assert [entry.status.code for entry in answer.entries] == [Code.OK] * 3
    found: list[bytes] = []

    def all_received() -> bool:
        for message in client.receive(queue):
            found.append(message.body)
            assert client.ack(message) == Code.OK
        return len(found) >= 3

    until_sync(all_received, "three messages")
    assert sorted(found) == [b"1", b"2", b"3"]


def test_killed_proxy_loses_no_acknowledged_message(namesrv: ServiceProcess) -> None:
    with proxy_process(namesrv.address) as proxy:
        with Client(proxy.address) as client:
            queue = client.queue("killed")
            client.send("killed", b"1", b"2")
            found = client.receive(queue)
            while len(found) < 2:
                found += client.receive(queue)
            assert client.ack(found[0]) == Code.OK
        proxy.kill()
        proxy.restart()
        with Client(proxy.address) as client:
            assert client.ack(found[1]) == Code.OK
            assert client.receive(queue) == []


def test_broker_returns_while_no_name_server_is_left(tmp_path: Path) -> None:
    with (
        namesrv_and_broker(tmp_path) as (namesrv, broker),
        proxy_process(namesrv.address) as proxy,
        Client(proxy.address) as client,
    ):
        queue = client.queue("left")
        client.send("left", b"1")
        assert [message.body for message in client.receive(queue)] == [b"1"]
        namesrv.kill()
        broker.kill()
        assert client.send("left", b"lost").status.code == Code.PROXY_TIMEOUT
        broker.restart()

        def is_stored() -> bool:
            return bool(client.send("left", b"2").status.code == Code.OK)

        until_sync(is_stored, "a send after the broker came back")
        assert [message.body for message in client.receive(queue)] == [b"2"]


def test_group_offset_is_stored(client: Client) -> None:
    queue = client.queue("offsets")
    client.send("offsets", *(b"x" for _ in range(16)))
    bounds = {
        policy: client.ask(
            "QueryOffset", s.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)
        ).offset
        for policy in (d.QueryOffsetPolicy.BEGINNING, d.QueryOffsetPolicy.END)
    }
    assert list(bounds.values()) == [0, 2]
    group = d.Resource(name="offsets_group")
    request = s.HeartbeatRequest(group=group, client_type=d.ClientType.PULL_CONSUMER)
    assert client.ask("Heartbeat", request).status.code == Code.OK
    get = s.GetOffsetRequest(group=group, message_queue=queue)
    assert client.ask("GetOffset", get).status.code == Code.OFFSET_NOT_FOUND
    update = s.UpdateOffsetRequest(group=group, message_queue=queue, offset=1)
    assert client.ask("UpdateOffset", update).status.code == Code.OK
    assert client.ask("GetOffset", get).offset == 1


def test_pull_has_messages_and_next_offset(client: Client) -> None:
    queue = client.queue("pulled")
    client.send("pulled", *(str(n).encode() for n in range(16)))
    group = d.Resource(name="pulled_group")
    heartbeat = s.HeartbeatRequest(group=group, client_type=d.ClientType.PULL_CONSUMER)
    assert client.ask("Heartbeat", heartbeat).status.code == Code.OK
    request = s.PullMessageRequest(group=group, message_queue=queue, offset=1, batch_size=10)
    answers = list(client.ask("PullMessage", request))
    kinds = [answer.WhichOneof("content") for answer in answers]
    assert kinds == ["status", "message", "next_offset"]
    assert answers[0].status.code == Code.OK
    assert answers[1].message.system_properties.queue_offset == 1
    assert answers[2].next_offset == 2
    request.offset = 99
    answers = list(client.ask("PullMessage", request))
    assert answers[0].status.code == Code.ILLEGAL_OFFSET


@pytest.mark.parametrize("method", list(METHODS), ids=lambda method: method.name)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_malformed_requests_do_no_harm(
    client: Client, proxy: ServiceProcess, method: Any, data: st.DataObject
) -> None:
    """Whatever the answer, the process lives on, without a defect in its log."""
    spoilt = mutated(VALID[method.name]("HANDLE"), "HANDLE")
    frame = data.draw(
        st.binary(max_size=200) | spoilt.map(lambda request: request.SerializeToString())
    )
    path = f"/{method.containing_service.full_name}/{method.name}"
    channel: Any = client.channel  # bytes as they are: without a serializer
    with contextlib.suppress(grpc.RpcError):
        if method.client_streaming:
            list(channel.stream_stream(path)(iter([frame]), metadata=METADATA, timeout=2))
        elif method.server_streaming:
            list(channel.unary_stream(path)(frame, metadata=METADATA, timeout=2))
        else:
            channel.unary_unary(path)(frame, metadata=METADATA, timeout=2)
    for defect in ("rpc_failed", "handler_failed", "background_work_failed"):
        assert not proxy.events(defect)


def test_users_are_reloaded(namesrv: ServiceProcess, tmp_path: Path) -> None:
    file = tmp_path / "users.json"

    def write(password: str) -> None:
        file.write_text(json.dumps({"users": [{"username": "app", "password": password}]}))
        file.chmod(0o600)

    write("first")
    settings = ("--set=authenticationEnabled=true", f"--set=authenticationUsersFile={file}")
    with proxy_process(namesrv.address, *settings) as proxy, Client(proxy.address) as client:
        request = s.QueryRouteRequest(topic=d.Resource(name="t"), endpoints=client.endpoints)

        def answer(secret: str) -> int:
            metadata = signed("app", secret)
            return int(client.stub.QueryRoute(request, metadata=metadata, timeout=30).status.code)

        def refuse_telemetry() -> None:
            """An unknown user reads why from the stream, and again from how it ends."""
            commands = iter([s.TelemetryCommand()])
            stream = client.stub.Telemetry(commands, metadata=METADATA, timeout=30)
            reported = next(stream).status
            assert reported.code == Code.UNAUTHORIZED
            with pytest.raises(grpc.RpcError) as ended:
                next(stream)
            assert ended.value.code() == grpc.StatusCode.PERMISSION_DENIED
            assert ended.value.details() == reported.message

        assert (answer("first"), answer("second")) == (Code.OK, Code.UNAUTHORIZED)
        refuse_telemetry()
        write("second")
        until_sync(lambda: answer("second") == Code.OK, "the new secret to count")
        assert answer("first") == Code.UNAUTHORIZED
        assert "first" not in proxy.output and "second" not in proxy.output


def test_prometheus_metrics(proxy: ServiceProcess, client: Client) -> None:
    client.queue("counted")
    client.send("counted", b"1")
    with urllib.request.urlopen(f"http://{proxy.ready['metrics']}/metrics", timeout=20) as page:
        text = page.read().decode()
    assert 'aerobee_proxy_clients{node_type="proxy"} 1' in text.splitlines()
    sent = next(line for line in text.splitlines() if line.startswith("aerobee_proxy_sent_total"))
    assert float(sent.split()[1]) >= 1


def test_port_in_use_is_one_line(proxy: ServiceProcess) -> None:
    done = run("aerobee_proxy", "--port", str(proxy.port), "--namesrv", "127.0.0.1:9876")
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot listen") and str(proxy.port) in done.stderr
