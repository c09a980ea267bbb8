"""The audit log of a proxy: which calls have lines, and who made them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import ClientType

from aerobee_chassis.rpc.audit import Who
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2.rpc.pipeline import NotAdmitted
from support.proxy.access import signed, write_users
from support.proxy.harness import Cluster, FakeCall, Requests
from support.proxy.leasing import LeasingBroker, receive

ORDERS, BILLING = d.Resource(name="orders"), d.Resource(name="billing")
ALLOWED = [
    {"resource": "Topic:orders", "actions": "Sub"},
    {"resource": "Group:billing", "actions": "Sub"},
]


class Recorder:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.rejections: list[tuple[Who, str, str]] = []
        self.readings: list[tuple[Who, str, list[str]]] = []

    def rejected(self, who: Who, path: str, result: str, reason: str) -> None:
        self.rejections.append((who, path.rpartition("/")[2], result))

    def reads(self, path: str) -> bool:
        return path.endswith("/ReceiveMessage")

    def read_by(self, who: Who, path: str, resources: Sequence[str]) -> None:
        self.readings.append((who, path.rpartition("/")[2], list(resources)))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(ProxyOptions, "audit", lambda *_: recorder)
    return recorder


def proxy_for(tmp_path: Path) -> Proxy:
    user = {"username": "app", "password": "p", "userType": "NORMAL", "policies": ALLOWED}
    file = write_users(tmp_path / "users.json", user)
    return Cluster().proxy(
        authentication_enabled=True, authorization_enabled=True, authentication_users_file=str(file)
    )


def call(secret: str = "p") -> FakeCall:
    return FakeCall(signed("app", secret))


async def test_rejected_calls_name_the_user_or_the_claimed_one(
    tmp_path: Path, recorder: Recorder
) -> None:
    proxy = proxy_for(tmp_path)
    await proxy.rpcs.query_route(s.QueryRouteRequest(topic=ORDERS), call())
    assert not recorder.rejections
    lacking: Any = s.AckMessageRequest(group=BILLING, topic=d.Resource(name="paid"))
    await proxy.rpcs.ack_message(lacking, call())
    await receive(proxy, call("wrong"))
    requests = Requests()
    requests.put(s.TelemetryCommand(settings=d.Settings(client_type=ClientType.PRODUCER)))
    requests.end()
    with suppress(NotAdmitted):
        await proxy.rpcs.telemetry(aiter(requests), call("wrong"))
    found = [(who.user, who.claimed, rpc, code) for who, rpc, code in recorder.rejections]
    assert found == [
        ("app", "", "AckMessage", "UNAUTHORIZED"),
        ("", "app", "ReceiveMessage", "UNAUTHORIZED"),
        ("", "app", "Telemetry", "UNAUTHORIZED"),
    ]
    assert all(who.address for who, *_ in recorder.rejections)


async def test_receives_have_their_group_and_topic(recorder: Recorder) -> None:
    await receive(LeasingBroker().proxy())
    ((who, rpc, resources),) = recorder.readings
    assert (who.address, rpc) == ("192.0.2.1:5123", "ReceiveMessage")
    assert sorted(resources) == ["Group:g", "Topic:orders"]
