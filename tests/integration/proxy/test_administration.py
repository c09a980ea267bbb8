"""The administration port of a proxy process: its RPCs, who may call them, and its options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from aerobee_foreign.google.protobuf.timestamp_pb2 import Timestamp

from aerobee_client import AdminClient, Credentials, Tls
from aerobee_client import Code as BrokerCode
from aerobee_proxy.v2.admin.needs import CHANGES
from aerobee_wire.audit import CHANGE, REJECTED, RESULT, Chain
from support.clock.polling import until_sync
from support.codes import raises_code
from support.processes.command import aerobee, aerobee_json
from support.processes.service import (
    ServiceProcess,
    namesrv_process,
    proxy_process,
)
from support.proxy.access import write_users
from support.proxy.client import Client, signed
from support.stubs import Stub

ADMIN = (
    "--set=enableProxyAdminGrpcServer=true",
    "--set=proxyAdminGrpcServerPort=0",
)
NO_PERMISSION = BrokerCode.NO_PERMISSION
TOPIC, GROUP = d.Resource(name="orders"), d.Resource(name="g")
LEVEL = pb.ChangeLogLevelRequest(level=pb.ChangeLogLevelRequest.INFO)
RESET = pb.ResetGroupOffsetRequest(group=GROUP, topic=TOPIC, reset_timestamp=Timestamp(seconds=1))
# Each RPC, with the code of its answer; "none" is a client that is unknown.
CALLS: list[tuple[str, Any, int]] = [
    ("DescribeTopicStatus", pb.DescribeTopicStatusRequest(topic=TOPIC), Code.OK),
    ("GetTopicRoute", pb.GetTopicRouteRequest(topic=TOPIC), Code.OK),
    ("ListSubscription", pb.ListSubscriptionRequest(group=GROUP), Code.OK),
    ("DescribeSubscription", pb.DescribeSubscriptionRequest(topic=TOPIC), Code.OK),
    ("DescribeGroupAccumulation", pb.DescribeGroupAccumulationRequest(group=GROUP), Code.OK),
    ("QueryTimeSpan", pb.QueryTimeSpanRequest(group=GROUP), Code.OK),
    ("ListConsumerConnection", pb.ListConsumerConnectionRequest(group=GROUP), Code.OK),
    ("QueryMessage", pb.ListMessageRequest(topic=TOPIC), Code.OK),
    ("AdminSendMessage", pb.AdminSendMessageRequest(topic=TOPIC, body=b"by hand"), Code.OK),
    ("GetProxyRuntimeStats", pb.GetProxyRuntimeStatsRequest(), Code.OK),
    ("ResetGroupOffset", RESET, Code.OK),
    (
        "GetConsumerRunningInfo",
        pb.GetConsumerRunningInfoRequest(group=GROUP, client_id="none"),
        Code.NOT_FOUND,
    ),
    (
        "PrintThreadStackTrace",
        pb.PrintThreadStackTraceRequest(group=GROUP, client_id="none"),
        Code.NOT_FOUND,
    ),
    (
        "VerifyMessage",
        pb.VerifyMessageRequest(group=GROUP, topic=TOPIC, client_id="none", message_id="1"),
        Code.NOT_FOUND,
    ),
    ("DeleteSubscription", pb.DeleteSubscriptionRequest(group=GROUP, topic=TOPIC), Code.OK),
]


def call(address: str, rpc: str, request: Any, metadata: Any = ()) -> Any:
    with grpc.insecure_channel(address) as channel:
        method = getattr(Stub(pb, channel), rpc)
        return method(request, metadata=metadata, timeout=30, wait_for_ready=True)


def test_every_rpc_answers(namesrv: ServiceProcess) -> None:
    names = {rpc for rpc, _, _ in CALLS} | {"ChangeLogLevel"}
    assert names == {m.name for m in pb.DESCRIPTOR.services_by_name["Admin"].methods}
    with proxy_process(namesrv.address, *ADMIN) as proxy:
        port = proxy.ready["admin"]
        with Client(proxy.address) as client:
            queue = client.queue("orders")
            client.send("orders", b"1")
            until_sync(lambda: client.receive(queue), "the message")
        for rpc, request, code in CALLS:
            answer = call(port, rpc, request)
            assert answer.status.code == code, (rpc, answer.status)
        assert (
            "debug" in call(port, "ChangeLogLevel", pb.ChangeLogLevelRequest(level="DEBUG")).remark
        )
        found = call(port, "QueryMessage", pb.ListMessageRequest(topic=TOPIC))
        assert [message.body for message in found.messages] == [b"1", b"by hand"]
        with Client(proxy.address) as client, pytest.raises(grpc.RpcError) as failed:
            call(proxy.address, "GetTopicRoute", pb.GetTopicRouteRequest(topic=TOPIC))
        assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED, "of its own port only"


def test_users_need_rights_and_may_sign_like_an_sdk_or_like_the_command(
    namesrv: ServiceProcess, tmp_path: Path
) -> None:
    reader = [{"resource": "Topic:*", "actions": "Sub"}]
    users = write_users(
        tmp_path / "users.json",
        {"username": "app", "password": "secret-app", "policies": reader},
        {"username": "boss", "password": "secret-boss", "userType": "SUPER"},
    )
    audit = tmp_path / "audit.log"
    closed = (
        "--set=authenticationEnabled=true",
        f"--set=authenticationUsersFile={users}",
        f"--set=auditLogPath={audit}",
    )
    with proxy_process(namesrv.address, *ADMIN, *closed) as proxy:
        port = proxy.ready["admin"]
        boss, app = signed("boss", "secret-boss"), signed("app", "secret-app")
        call(port, "AdminSendMessage", pb.AdminSendMessageRequest(topic=TOPIC, body=b"x"), boss)
        for rpc, request, _ in CALLS:
            # Few wrong secrets, because more of them are answered late.
            wrong = (signed("app", "wrong"),) if type(request) in CHANGES else ()
            for metadata in ((), *wrong, app):
                if metadata is app and rpc in ("QueryMessage", "GetTopicRoute"):
                    continue  # these need Sub only
                answer = call(port, rpc, request, metadata)
                assert answer.status.code == Code.UNAUTHORIZED, (rpc, metadata)
            assert call(port, rpc, request, boss).status.code != Code.UNAUTHORIZED
        for metadata in ((), app):
            with pytest.raises(grpc.RpcError) as failed:
                call(port, "ChangeLogLevel", LEVEL, metadata)
            assert failed.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert call(port, "ChangeLogLevel", LEVEL, boss).remark
        with AdminClient(namesrv.address) as admin, raises_code(NO_PERMISSION):
            admin.proxy_config(port)
        for user in ("app", "boss"):
            key = Credentials(user, f"secret-{user}")
            with AdminClient(namesrv.address, credentials=key) as admin:
                if user == "boss":
                    admin.update_proxy_config(port, {"logLevel": "debug"})
                    continue
                with raises_code(NO_PERMISSION):
                    admin.update_proxy_config(port, {"logLevel": "debug"})
    lines = list(Chain().check(audit.open("rb")))
    changes = [line for line in lines if line["event"] == CHANGE]
    results = {line["request_id"]: line["result"] for line in lines if line["event"] == RESULT}
    assert {line["user"] for line in changes} == {"boss"}
    assert {line["rpc"]: results[line["request_id"]] for line in changes} == {
        "Admin/AdminSendMessage": "OK",
        "Admin/ChangeLogLevel": "OK",
        "Admin/DeleteSubscription": "OK",
        "Admin/PrintThreadStackTrace": "NOT_FOUND",
        "Admin/ResetGroupOffset": "OK",
        "Admin/VerifyMessage": "NOT_FOUND",
        "ProxyConfigService/UpdateConfig": "OK",
    }
    (reset,) = (line for line in changes if line["rpc"] == "Admin/ResetGroupOffset")
    assert reset["resources"] == ["Group:g"] and reset["address"].startswith("127.0.0.1:")
    rejected = {
        (line["user"], line.get("claimed_user", ""), line["rpc"])
        for line in lines
        if line["event"] == REJECTED
    }
    for rpc in ("Admin/DeleteSubscription", "Admin/ResetGroupOffset", "Admin/AdminSendMessage"):
        assert {("", "", rpc), ("", "app", rpc), ("app", "", rpc)} <= rejected


def test_options_change_without_a_restart_and_survive_one_with_a_file(
    namesrv: ServiceProcess, tmp_path: Path
) -> None:
    file = f"--set=runtimeConfigPath={tmp_path / 'runtime.json'}"
    servers, level = namesrv.address, "maxMessageGroupSize"
    with proxy_process(servers, *ADMIN, file) as proxy:
        name = f"{os.uname().nodename}:{proxy.port}"
        until_sync(lambda: known(servers, name), "the proxy at the name server")
        aerobee_json("proxy", "config", "set", name, f"{level}=9", namesrv=servers)
        with Client(proxy.address) as client:
            client.queue("limits")
            answer = client.send("limits", b"x", message_group="longer than nine")
            assert answer.status.code == Code.ILLEGAL_MESSAGE_GROUP
        fixed = aerobee("proxy", "config", "set", name, "maxMessageSize=1", namesrv=servers)
        assert fixed.returncode == 1 and "at start only" in " ".join(fixed.stderr.split())
        [shown] = aerobee_json("proxy", "config", "get", name, level, namesrv=servers)
        assert (shown["value"], shown["source"]) == ("9", "run time")
    with proxy_process(servers, *ADMIN, file) as proxy:
        port = proxy.ready["admin"]
        assert proxy.events("options_restored")
        aerobee_json("proxy", "config", "unset", port, level, namesrv=servers)
        [shown] = aerobee_json("proxy", "config", "get", port, level, namesrv=servers)
        assert (shown["value"], shown["source"]) == ("64", "default")
    with proxy_process(servers) as proxy:
        name = f"{os.uname().nodename}:{proxy.port}"
        until_sync(lambda: known(servers, name), "the proxy at the name server")
        none = aerobee("proxy", "config", "get", name, namesrv=servers)
        assert none.returncode == 1 and "enableProxyAdminGrpcServer" in none.stderr


def known(namesrv: str, name: str) -> bool:
    with AdminClient(namesrv) as admin:
        return name in {each.name for each in admin.cluster().proxies}


def test_command_checks_that_the_port_is_that_of_a_proxy_of_its_cluster(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    assert aerobee("certs", "init", str(certs)).returncode == 0
    users = write_users(
        tmp_path / "users.json", {"username": "boss", "password": "secret", "userType": "SUPER"}
    )

    def closed(role: str) -> list[str]:
        return [
            "--set=tlsServerMode=enforcing",
            f"--set=tlsTrustCertPath={certs / 'ca.crt'}",
            f"--set=tlsCertPath={certs / f'{role}.crt'}",
            f"--set=tlsKeyPath={certs / f'{role}.key'}",
        ]

    user = ("--set=authenticationEnabled=true", f"--set=authenticationUsersFile={users}")
    tls = Tls(certs / "ca.crt", certs / "admin.crt", certs / "admin.key")
    boss = Credentials("boss", "secret")
    with (
        namesrv_process(tmp_path / "namesrv", *closed("namesrv")) as servers,
        proxy_process(servers.address, *ADMIN, *closed("proxy"), *user) as proxy,
        AdminClient(servers.address, tls=tls) as admin,
        AdminClient(servers.address, tls=tls, credentials=boss) as signing,
    ):
        options = signing.proxy_config(proxy.ready["admin"])
        assert "logLevel" in {option.key for option in options}
        with raises_code(NO_PERMISSION):
            admin.proxy_config(proxy.ready["admin"])
