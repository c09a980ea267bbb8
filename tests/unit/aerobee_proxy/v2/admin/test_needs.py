"""The rights of users on the administration port, and who may call its other service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2.admin.needs import NEEDS
from aerobee_proxy.v2.admin.service import DESCRIPTOR
from aerobee_proxy.v2.status import Refused
from support.proxy.access import signed, write_users
from support.proxy.harness import Cluster, FakeCall

TOPIC, GROUP = d.Resource(name="orders"), d.Resource(name="billing")
GET_TOPIC = ("Topic:orders", "Get")
GET_GROUP, UPDATE_GROUP = ("Group:billing", "Get"), ("Group:billing", "Update")
SUB_TOPIC, PUB_TOPIC = ("Topic:orders", "Sub"), ("Topic:orders", "Pub")
GET_CLUSTER, UPDATE_CLUSTER = (
    ("Cluster:DefaultCluster", "Get"),
    ("Cluster:DefaultCluster", "Update"),
)
Right = tuple[str, str]

# A request, and the rights that are enough for it. None of them is enough alone.
CASES: list[tuple[Any, list[Right]]] = [
    (pb.ChangeLogLevelRequest(level=pb.ChangeLogLevelRequest.INFO), [UPDATE_CLUSTER]),
    (pb.GetProxyRuntimeStatsRequest(), [GET_CLUSTER]),
    (pb.DescribeTopicStatusRequest(topic=TOPIC), [GET_TOPIC]),
    (pb.GetTopicRouteRequest(topic=TOPIC), [PUB_TOPIC]),
    (pb.ListSubscriptionRequest(group=GROUP, topic=TOPIC), [GET_GROUP, GET_TOPIC]),
    (pb.DescribeSubscriptionRequest(group=GROUP), [GET_GROUP]),
    (pb.DeleteSubscriptionRequest(group=GROUP, topic=TOPIC), [UPDATE_GROUP]),
    (pb.DescribeGroupAccumulationRequest(group=GROUP), [GET_GROUP]),
    (pb.ListConsumerConnectionRequest(group=GROUP), [GET_GROUP]),
    (pb.GetConsumerRunningInfoRequest(group=GROUP), [GET_GROUP]),
    (pb.QueryTimeSpanRequest(group=GROUP), [GET_GROUP]),
    (pb.ResetGroupOffsetRequest(group=GROUP, topic=TOPIC), [UPDATE_GROUP]),
    (pb.ListMessageRequest(topic=TOPIC), [SUB_TOPIC]),
    (pb.PrintThreadStackTraceRequest(group=GROUP), [UPDATE_GROUP]),
    (pb.VerifyMessageRequest(group=GROUP, topic=TOPIC), [UPDATE_GROUP, SUB_TOPIC]),
    (pb.AdminSendMessageRequest(topic=TOPIC), [PUB_TOPIC]),
]
EVERY = {GET_TOPIC, GET_GROUP, UPDATE_GROUP, SUB_TOPIC, PUB_TOPIC, GET_CLUSTER, UPDATE_CLUSTER}


def proxy_for(tmp_path: Path, rights: list[Right]) -> Proxy:
    """Policies count although authorizationEnabled is off: it is about producers and consumers."""
    policies = [{"resource": resource, "actions": action} for resource, action in rights]
    file = write_users(
        tmp_path / "users.json", {"username": "app", "password": "p", "policies": policies}
    )
    return Cluster().proxy(authentication_enabled=True, authentication_users_file=str(file))


async def refused(proxy: Proxy, request: Any, call: FakeCall) -> bool:
    (method,) = (m for m in DESCRIPTOR.methods if m.input_type.name == type(request).__name__)
    handler = getattr(proxy.admin_rpcs, re.sub(r"\B(?=[A-Z])", "_", method.name).lower())
    try:
        answer = await handler(request, call)
    except Refused as refusal:
        return bool(refusal.code == Code.UNAUTHORIZED)
    return method.name != "ChangeLogLevel" and answer.status.code == Code.UNAUTHORIZED


def test_every_rpc_has_its_needs_and_a_case() -> None:
    names = {method.input_type.name for method in DESCRIPTOR.methods}
    assert {request.__name__ for request in NEEDS} == names
    assert {type(request).__name__ for request, _ in CASES} == names and len(names) == 16


@pytest.mark.parametrize(
    ("request_", "enough"), CASES, ids=lambda value: type(value).__name__.removesuffix("Request")
)
async def test_rights_of_each_rpc(tmp_path: Path, request_: Any, enough: list[Right]) -> None:
    call = FakeCall(signed("app", "p"))
    assert not await refused(proxy_for(tmp_path, enough), request_, call)
    for right in enough:
        too_little = sorted(EVERY - {right})
        if right == PUB_TOPIC and isinstance(request_, pb.GetTopicRouteRequest):
            too_little = [each for each in too_little if not each[0].startswith("Topic")]
        if right == SUB_TOPIC and isinstance(request_, pb.ListMessageRequest):
            too_little.remove(GET_TOPIC)
        assert await refused(proxy_for(tmp_path, too_little), request_, call), right
    unsigned = FakeCall({})
    assert await refused(proxy_for(tmp_path, sorted(EVERY)), request_, unsigned)


async def test_rights_count_the_namespace(tmp_path: Path) -> None:
    proxy = proxy_for(tmp_path, [GET_GROUP])
    group = d.Resource(resource_namespace="ns", name="billing")
    request = pb.DescribeGroupAccumulationRequest(group=group)
    assert await refused(proxy, request, FakeCall(signed("app", "p")))
