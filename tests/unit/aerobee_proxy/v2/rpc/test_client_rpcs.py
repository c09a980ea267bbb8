"""RPCs of every client against a cluster in memory: admission, routes, assignments, heartbeats.

Refused requests are in test_status_codes.py.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
import structlog
from aerobee.broker.v1.admin_pb2 import GetGroupResponse, GroupConfig
from aerobee.broker.v1.client_pb2 import HeartbeatResponse, UnregisterClientResponse
from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, GetClusterInfoResponse
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import DESCRIPTOR

from aerobee_chassis.rpc.services import bind
from aerobee_proxy.v2 import sessions
from aerobee_wire.rpcs import HEARTBEAT, UNREGISTER_CLIENT
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError
from support.proxy.access import BILLING, SECRET, signed, write_users
from support.proxy.harness import BROKER, CLIENT_ID, Cluster, FakeCall, route

ENDPOINTS = d.Endpoints(
    scheme=d.AddressScheme.DOMAIN_NAME, addresses=[d.Address(host="mq.test", port=18081)]
)
TOPIC = d.Resource(name="orders")
GROUP = d.Resource(name="g")
PUSH, PRODUCER = d.ClientType.PUSH_CONSUMER, d.ClientType.PRODUCER


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def ask(cluster: Cluster, rpc: str, request: Any, call: FakeCall | None = None) -> Any:
    return await getattr(cluster.proxy().rpcs, rpc)(request, call or FakeCall())


def test_every_rpc_has_a_handler(cluster: Cluster) -> None:
    service = bind(DESCRIPTOR.services_by_name["MessagingService"], cluster.proxy().rpcs)
    assert len(service.methods) == 17


async def test_clients_of_one_user_are_limited(cluster: Cluster, tmp_path: Path) -> None:
    others = {"username": "orders", "password": SECRET}
    users = write_users(tmp_path / "users.json", BILLING, others)
    rpcs = cluster.proxy(
        authentication_enabled=True, authentication_users_file=str(users), max_clients_per_user=2
    ).rpcs
    request = s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS)

    async def status(user: str, client_id: str) -> d.Status:
        metadata = signed(user) | {"x-mq-client-id": client_id}
        answer = await rpcs.query_route(request, FakeCall(metadata))
        assert isinstance(answer.status, d.Status)
        return answer.status

    calls = [("billing", each) for each in ("a", "b", "c", "a")] + [("orders", "c")]
    found = [await status(*each) for each in calls]
    expected = [Code.OK, Code.OK, Code.TOO_MANY_REQUESTS, Code.OK, Code.OK]
    assert [each.code for each in found] == expected
    assert "maxClientsPerUser" in found[2].message


async def test_clients_beyond_the_limit_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    rpcs = cluster.proxy().rpcs
    request = s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS)
    codes = [
        (await rpcs.query_route(request, FakeCall({"x-mq-client-id": name}))).status.code
        for name in ("a", "b", "c", "a", "b")
    ]
    assert codes == [Code.OK, Code.OK, Code.TOO_MANY_REQUESTS, Code.OK, Code.OK]


async def test_route_has_the_dialled_endpoints(cluster: Cluster) -> None:
    answer = await ask(
        cluster, "query_route", s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS)
    )
    assert answer.status.code == Code.OK
    assert [found.id for found in answer.message_queues] == [0, 1, 2, 3]
    assert all(found.broker.endpoints == ENDPOINTS for found in answer.message_queues)


async def test_no_more_than_a_name_is_kept_of_a_user_agent(cluster: Cluster) -> None:
    """There may be 50,000 clients, and gRPC accepts some 16 KiB of metadata for each."""
    metadata = dict.fromkeys(("x-mq-client-id", "x-mq-language", "x-mq-client-version"), "x" * 500)
    request = s.HeartbeatRequest(group=GROUP, client_type=PUSH)
    await ask(cluster, "heartbeat", request, FakeCall(metadata))
    (sent,) = cluster.transport.requests(HEARTBEAT)
    assert sent.client_id == "x" * 500 and sent.language == sent.version == "x" * 64


@pytest.mark.parametrize("rpc", ["heartbeat", "notify_client_termination"])
async def test_a_broker_that_hangs_does_not_use_up_the_time_of_a_client(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, rpc: str
) -> None:
    async def hang(_address: str, _rpc: Any, _request: Any, *, timeout_s: float) -> Any:
        await asyncio.sleep(timeout_s)
        raise MqError(BrokerCode.REQUEST_TIMEOUT, "no answer")

    proxy = cluster.proxy()
    await proxy.route_cache.brokers()
    monkeypatch.setattr(cluster.transport, "call", hang)
    request = (
        s.HeartbeatRequest(group=GROUP, client_type=PUSH)
        if rpc == "heartbeat"
        else s.NotifyClientTerminationRequest(group=GROUP)
    )
    async with asyncio.timeout(sessions.DEFAULT_REQUEST_TIMEOUT_MS / 1_000):
        assert (await getattr(proxy.rpcs, rpc)(request, FakeCall())).status.code == Code.OK


async def test_status_without_a_name_server(cluster: Cluster) -> None:
    cluster.transport.answers["GetTopicRoute"] = None
    request = s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS)
    assert (await ask(cluster, "query_route", request)).status.code == Code.PROXY_TIMEOUT


async def test_assignment_in_a_fifo_topic_has_every_queue(cluster: Cluster) -> None:
    cluster.routes["orders"] = route(message_type="FIFO")
    request = s.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=ENDPOINTS)
    answer = await ask(cluster, "query_assignment", request)
    assert [found.message_queue.id for found in answer.assignments] == [0, 1, 2, 3]


async def test_assignment_of_a_fifo_group_has_every_queue(cluster: Cluster) -> None:
    group = GroupConfig(consumer_group="g", consume_message_orderly=True, retry_max_times=3)
    cluster.transport.answers["GetGroup"] = GetGroupResponse(group=group)
    request = s.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=ENDPOINTS)
    answer = await ask(cluster, "query_assignment", request)
    assert [found.message_queue.id for found in answer.assignments] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "code"),
    [(PRODUCER, Code.OK), (d.ClientType.CLIENT_TYPE_UNSPECIFIED, Code.UNRECOGNIZED_CLIENT_TYPE)],
)
async def test_heartbeat_before_settings(cluster: Cluster, kind: d.ClientType, code: Code) -> None:
    answer = await ask(cluster, "heartbeat", s.HeartbeatRequest(client_type=kind))
    assert answer.status.code == code


async def test_heartbeats_report_to_brokers_who_calls_from_where(cluster: Cluster) -> None:
    cluster.transport.answers["Heartbeat"] = HeartbeatResponse()
    proxy = cluster.proxy()
    call = FakeCall(
        {"x-mq-client-id": CLIENT_ID, "x-mq-language": "GO", "x-mq-client-version": "5.1.4"}
    )
    await proxy.rpcs.heartbeat(s.HeartbeatRequest(client_type=PUSH, group=GROUP), call)
    (asked,) = cluster.transport.requests(HEARTBEAT)
    assert (asked.address, asked.language, asked.version) == (call.peer, "go", "5.1.4")
    assert asked.proxy.partition(":")[0] == socket.gethostname()
    assert [consumer.consumer_group for consumer in asked.consumers] == ["g"]


async def test_a_producer_s_heartbeat_reports_its_topics_to_brokers(cluster: Cluster) -> None:
    cluster.transport.answers["Heartbeat"] = HeartbeatResponse()
    cluster.transport.answers["UnregisterClient"] = UnregisterClientResponse()
    proxy = cluster.proxy()
    beat = s.HeartbeatRequest(client_type=PRODUCER)
    await proxy.rpcs.heartbeat(beat, FakeCall())
    await asyncio.sleep(1)  # it knows no topics yet, and is not told on
    session = proxy.sessions.get(CLIENT_ID)
    assert session is not None
    declared = d.Settings(client_type=PRODUCER, publishing=d.Publishing(topics=[TOPIC]))
    proxy.sessions.set_settings(session, declared)
    cluster.transport.gate.clear()  # it waits for no broker
    assert (await proxy.rpcs.heartbeat(beat, FakeCall())).status.code == Code.OK
    cluster.transport.gate.set()
    await proxy.rpcs.notify_client_termination(s.NotifyClientTerminationRequest(), FakeCall())
    await proxy.background.close()
    (asked,) = cluster.transport.requests(HEARTBEAT)
    assert (list(asked.published_topics), len(asked.consumers)) == (["orders"], 0)
    (ended,) = cluster.transport.requests(UNREGISTER_CLIENT)
    assert (ended.publishing, ended.consumer_group) == (True, "")


async def test_termination_of_an_unknown_client(cluster: Cluster) -> None:
    request = s.NotifyClientTerminationRequest()
    answer = await ask(cluster, "notify_client_termination", request)
    assert answer.status.code == Code.OK


async def test_failed_heartbeats_are_logged_with_a_throttle(cluster: Cluster) -> None:
    cluster.transport.answers["Heartbeat"] = MqError(BrokerCode.REQUEST_TIMEOUT, "no answer")
    rpcs = cluster.proxy().rpcs
    request = s.HeartbeatRequest(client_type=PUSH, group=GROUP)
    with structlog.testing.capture_logs() as logs:
        for _ in range(20):
            answer = await rpcs.heartbeat(request, FakeCall())
            assert answer.status.code == Code.OK
            cluster.clock.advance(1_000)
    logged = [(line["broker"], line["suppressed"]) for line in logs]
    assert logged == [("broker-a", 0), ("broker-a", 9)]


async def test_termination_goes_on_without_the_client(cluster: Cluster) -> None:
    other = BrokerData(broker_name="broker-b", addresses={0: "10.0.0.2:10911"})
    cluster.transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=[BROKER, other])
    proxy = cluster.proxy()
    rpcs = proxy.rpcs
    request = s.NotifyClientTerminationRequest(group=GROUP)

    async def terminate() -> None:
        await rpcs.notify_client_termination(request, FakeCall())

    cluster.transport.gate.clear()
    terminating = asyncio.create_task(terminate())
    await asyncio.sleep(1)
    terminating.cancel()
    await asyncio.wait([terminating])
    cluster.transport.gate.set()
    await proxy.background.close()
    assert len(cluster.transport.requests(UNREGISTER_CLIENT)) == 2


async def test_termination_unregisters_from_one_group(cluster: Cluster) -> None:
    group = d.Resource(name="billing", resource_namespace="eu")
    request = s.NotifyClientTerminationRequest(group=group)
    await ask(cluster, "notify_client_termination", request)
    (asked,) = cluster.transport.requests(UNREGISTER_CLIENT)
    assert (asked.client_id, asked.consumer_group) == (CLIENT_ID, "eu%billing")
