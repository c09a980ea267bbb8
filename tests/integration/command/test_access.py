"""`aerobee user` and `aerobee acl` over two name servers, two brokers and two proxies."""

from __future__ import annotations

import hmac
import json
import queue
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from aerobee.access.v1 import access_pb2
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aerobee_cli.errors import INCOMPLETE
from aerobee_wire.rpcs import BROKER_ACCESS, NAMESRV_ACCESS
from support.clock.polling import until_sync
from support.processes.command import aerobee
from support.processes.service import ServiceProcess, broker_process, namesrv_process, proxy_process
from support.proxy import sdk_cluster
from support.proxy.official_sdk import Sdk, newest
from support.stubs import Stub

AUTHENTICATION = "--set=authenticationEnabled=true", "--set=authorizationEnabled=true"


class Cluster:
    def __init__(
        self,
        namesrvs: list[ServiceProcess],
        brokers: list[ServiceProcess],
        proxies: list[ServiceProcess],
        data: Path,
    ) -> None:
        self.namesrvs, self.brokers, self.proxies = namesrvs, brokers, proxies
        self.namesrv = ";".join(each.address for each in namesrvs)
        self.data = data

    def command(self, *arguments: str) -> Any:
        """The JSON that a command prints. On a busy machine, a process may lack the change yet."""
        done = aerobee(*arguments, "--json", namesrv=self.namesrv)
        assert done.returncode in (0, INCOMPLETE), done.stderr
        return json.loads(done.stdout)

    def keys_at(self, process: ServiceProcess) -> set[str]:
        """The live records of a name server or broker."""
        rpcs = NAMESRV_ACCESS if process in self.namesrvs else BROKER_ACCESS
        with grpc.insecure_channel(process.address) as channel:
            call = channel.unary_unary(
                rpcs.list_table.path,
                request_serializer=access_pb2.ListTableRequest.SerializeToString,
                response_deserializer=access_pb2.ListTableResponse.FromString,
            )
            found = call(access_pb2.ListTableRequest(), timeout=10)
        return {record.key for record in found.records if not record.deleted}

    def everywhere(self, key: str) -> bool:
        return all(key in self.keys_at(each) for each in (*self.namesrvs, *self.brokers))

    def nowhere(self, key: str) -> bool:
        return not any(key in self.keys_at(each) for each in (*self.namesrvs, *self.brokers))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        namesrvs = [stack.enter_context(namesrv_process(data / f"namesrv-{n}")) for n in range(2)]
        addresses = ";".join(each.address for each in namesrvs)
        brokers = [
            stack.enter_context(
                broker_process(
                    data / f"broker-{n}", f"--set=brokerName=broker-{n}", namesrv=addresses
                )
            )
            for n in range(2)
        ]
        proxies = [stack.enter_context(proxy_process(addresses, *AUTHENTICATION)) for _ in range(2)]
        yield Cluster(namesrvs, brokers, proxies, data)
        for each in (*namesrvs, *brokers, *proxies):
            assert not each.events("background_work_failed"), each.output


def signed(name: str, secret: str) -> tuple[tuple[str, str], ...]:
    digest = hmac.digest(secret.encode(), b"now", "sha1").hex()
    header = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={digest}"
    return (
        ("x-mq-client-id", f"host@1@0@{name}"),
        ("x-mq-date-time", "now"),
        ("authorization", header),
    )


def answer(proxy: ServiceProcess, name: str, secret: str) -> tuple[int, str]:
    """The status of a heartbeat that a user signs."""
    request = s.HeartbeatRequest(
        client_type=d.ClientType.SIMPLE_CONSUMER, group=d.Resource(name="billing")
    )
    with grpc.insecure_channel(proxy.address) as channel:
        stub = Stub(s, channel)
        status = stub.Heartbeat(request, metadata=signed(name, secret), timeout=20).status
    return int(status.code), status.message


def refused(cluster: Cluster, name: str, secret: str) -> bool:
    return all(answer(each, name, secret)[0] == Code.UNAUTHORIZED for each in cluster.proxies)


def admitted(cluster: Cluster, name: str, secret: str) -> bool:
    return all(answer(each, name, secret)[0] == Code.OK for each in cluster.proxies)


def test_one_command_reaches_all_processes(cluster: Cluster) -> None:
    made = cluster.command("user", "create", "billing", "--generate")
    secret = made["secret_key"]
    until_sync(lambda: cluster.everywhere("user/billing"), "the user at all processes")
    until_sync(
        lambda: "lacks Sub on Group:billing" in answer(cluster.proxies[1], "billing", secret)[1],
        "the user at a proxy",
    )
    cluster.command(
        "acl", "create", "User:billing", "--resource", "Group:billing", "--actions", "Sub"
    )
    until_sync(lambda: admitted(cluster, "billing", secret), "the right at both proxies")
    assert refused(cluster, "billing", "another")

    cluster.command("user", "update", "billing", "--disable")
    until_sync(lambda: refused(cluster, "billing", secret), "the user to be refused")
    cluster.command("user", "update", "billing", "--enable")
    until_sync(lambda: admitted(cluster, "billing", secret), "the user again")
    cluster.command("acl", "delete", "billing", "--yes")
    until_sync(lambda: refused(cluster, "billing", secret), "the right to be gone")
    outputs = "".join(
        each.output for each in (*cluster.namesrvs, *cluster.brokers, *cluster.proxies)
    )
    assert secret not in outputs and "user_changed" in outputs
    cluster.command("user", "delete", "billing", "--yes")
    until_sync(lambda: cluster.nowhere("user/billing"), "the user to be gone")


def test_stream_and_long_poll_end_when_the_user_is_disabled(cluster: Cluster) -> None:
    secret = cluster.command("user", "create", "parted", "--generate")["secret_key"]
    cluster.command("acl", "create", "parted", "--resource", "*", "--actions", "All")
    until_sync(lambda: admitted(cluster, "parted", secret), "the user at both proxies")
    host, _, port = cluster.proxies[0].address.rpartition(":")
    topic = d.Resource(name="parted")
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
    )
    with grpc.insecure_channel(cluster.proxies[0].address) as channel:
        stub = Stub(s, channel)
        metadata = signed("parted", secret)
        request = s.QueryRouteRequest(topic=topic, endpoints=endpoints)
        route = stub.QueryRoute(request, metadata=metadata, timeout=20)
        commands: queue.Queue[s.TelemetryCommand | None] = queue.Queue()
        stream = stub.Telemetry(iter(commands.get, None), metadata=metadata, timeout=60)
        poll = s.ReceiveMessageRequest(
            group=d.Resource(name="parted"), message_queue=route.message_queues[0], batch_size=1
        )
        poll.invisible_duration.seconds = 30
        poll.long_polling_timeout.seconds = 50
        received = stub.ReceiveMessage(poll, metadata=metadata, timeout=60)
        settings = d.Settings(publishing=d.Publishing(topics=[topic]))
        settings.client_type = d.ClientType.PRODUCER
        commands.put(s.TelemetryCommand(settings=settings))
        assert next(stream).status.code == Code.OK
        (client,) = cluster.command("client", "list", "--user", "parted")
        assert client["user"] == "parted" and client["proxy"]
        cluster.command("user", "update", "parted", "--disable")
        found = [each for each in received if each.HasField("status")]
        assert [each.status.code for each in found] == [Code.UNAUTHORIZED]
        with pytest.raises(grpc.RpcError) as ended:
            list(stream)
        assert ended.value.code() == grpc.StatusCode.PERMISSION_DENIED
        commands.put(None)
    cluster.command("user", "delete", "parted", "--yes")


def test_rotation_keeps_both_secrets_until_it_is_finished(cluster: Cluster) -> None:
    first = cluster.command("user", "create", "rotated", "--super", "--generate")["secret_key"]
    second = cluster.command("user", "rotate", "rotated", "--generate")["secret_key"]
    until_sync(lambda: admitted(cluster, "rotated", second), "the second secret")
    assert admitted(cluster, "rotated", first)
    assert cluster.command("user", "get", "rotated")["secrets"] == 2
    cluster.command("user", "rotate", "rotated", "--finish")
    until_sync(lambda: refused(cluster, "rotated", first), "the first secret to be gone")
    assert admitted(cluster, "rotated", second)
    done = aerobee("user", "delete", "rotated", "--yes", namesrv=cluster.namesrv)
    assert done.returncode == 1 and "last enabled SUPER user" in done.stderr


def test_listings_and_files_have_no_secret_and_files_are_private(cluster: Cluster) -> None:
    made = cluster.command("user", "create", "listed", "--generate")
    secret = made["secret_key"]
    cluster.command("acl", "create", "listed", "--resource", "Topic:a*", "--actions", "Pub,Sub")
    shown = json.dumps(
        [
            cluster.command("user", "list"),
            cluster.command("user", "get", "listed"),
            cluster.command("acl", "list"),
            cluster.command("acl", "get", "listed"),
        ]
    )
    exported = aerobee("acl", "export", namesrv=cluster.namesrv)
    assert secret not in shown + exported.stdout
    users = {user["username"]: user for user in json.loads(exported.stdout)["users"]}
    assert users["listed"]["policies"] == [
        {
            "resource": "Topic:a*",
            "actions": ["Pub", "Sub"],
            "decision": "ALLOW",
            "policyType": "CUSTOM",
        }
    ]
    files = list(cluster.data.rglob("accessTable.json"))
    assert len(files) == 4
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert secret in file.read_text(), "an HMAC needs it"


def test_deciding_policy_is_named(cluster: Cluster) -> None:
    cluster.command("user", "create", "asked", "--generate")
    network = "--source-ip=10.0.0.0/8"
    for resource, more in (("Topic:*", ()), ("Topic:orders", ("--deny", network))):
        cluster.command("acl", "create", "asked", "--resource", resource, "--actions=Pub", *more)

    def asked(*more: str) -> str:
        done = aerobee(
            "acl", "test", "asked", "Topic:orders", "Pub", *more, namesrv=cluster.namesrv
        )
        return done.stdout.strip()

    denial = "denied: decided by DENY Pub on Topic:orders from 10.0.0.0/8 (CUSTOM)"
    assert asked("--source-ip", "10.0.0.7") == denial
    allowed = "allowed: decided by ALLOW Pub on Topic:* (CUSTOM)"
    assert asked("--source-ip", "11.0.0.7") == allowed


def test_import_creates_users_and_names_what_has_no_equivalent(
    cluster: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(
        "globalWhiteRemoteAddresses: ['10.*']\n"
        "accounts:\n- accessKey: imported\n  secretKey: s3cret\n  groupPerms: [billing=SUB]\n"
    )
    done = aerobee("acl", "import", str(file), namesrv=cluster.namesrv)
    assert done.returncode == 3 and "globalWhiteRemoteAddresses" in done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    until_sync(lambda: admitted(cluster, "imported", "s3cret"), "the imported user")
    done = aerobee("acl", "import", str(file), "--dry-run", namesrv=cluster.namesrv)
    assert "would be updated" in done.stdout


def states(cluster: Cluster) -> list[str]:
    return [each["state"] for each in cluster.command("proxy", "list")]


def test_processes_that_were_down_get_the_change(cluster: Cluster) -> None:
    namesrv, broker, proxy = cluster.namesrvs[1], cluster.brokers[1], cluster.proxies[1]
    for process in (namesrv, broker, proxy):
        process.kill()
    done = aerobee(
        "user", "create", "late", "--super", "--generate", "--json", namesrv=cluster.namesrv
    )
    made = json.loads(done.stdout)
    assert done.returncode == 3 and f"name server {namesrv.address}" in made["lacking"]
    until_sync(lambda: "missing" in states(cluster), "the dead proxy")
    listed = aerobee("client", "list", namesrv=cluster.namesrv)
    assert listed.returncode == INCOMPLETE
    assert "broker broker-1: it is not registered any more" in listed.stderr
    assert f":{proxy.address.rpartition(':')[2]} is missing since" in listed.stderr
    for file in (cluster.data / "namesrv-1").rglob("accessTable.json"):
        file.unlink()  # an empty disk
    for process in (namesrv, broker, proxy):
        process.restart()
    until_sync(lambda: cluster.everywhere("user/late"), "the user at all processes")
    until_sync(lambda: admitted(cluster, "late", made["secret_key"]), "the user at both proxies")
    until_sync(lambda: states(cluster) == ["up", "up"], "both proxies")


def test_proxy_is_not_serving_until_a_name_server_sends_the_table(tmp_path: Path) -> None:
    """An empty name server may have lost its disk: a broker must have filled it."""
    with (
        namesrv_process(tmp_path / "namesrv") as namesrv,
        proxy_process(namesrv.address, *AUTHENTICATION) as proxy,
        ExitStack() as later,
    ):

        def health() -> int:
            with grpc.insecure_channel(proxy.address) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status)

        serving = health_pb2.HealthCheckResponse.ServingStatus
        assert health() == serving.NOT_SERVING
        later.enter_context(broker_process(tmp_path / "broker", namesrv=namesrv.address))
        until_sync(lambda: health() == serving.SERVING, "the table")
        namesrv.stop()
        assert health() == serving.SERVING, "it continues with what it has"
        proxy.kill()
        proxy.restart()
        assert health() == serving.NOT_SERVING
        code, message = answer(proxy, "billing", "x")
        assert code == Code.INTERNAL_SERVER_ERROR and "retry" in message
        namesrv.restart()
        until_sync(lambda: health() == serving.SERVING, "the table again")


def test_first_user_is_not_back_after_an_empty_disk(tmp_path: Path) -> None:
    first = '--set=initAuthenticationUser={"username":"root","password":"s3cret"}'
    with (
        namesrv_process(tmp_path / "namesrv", first) as namesrv,
        broker_process(tmp_path / "broker", namesrv=namesrv.address) as broker,
    ):
        cluster = Cluster([namesrv], [broker], [], tmp_path)
        until_sync(lambda: cluster.everywhere("user/root"), "the first user")
        cluster.command("user", "create", "ops", "--super", "--generate")
        cluster.command("user", "delete", "root", "--yes")
        created = len(namesrv.events("first_user_created"))
        namesrv.kill()
        for file in (tmp_path / "namesrv").rglob("accessTable.json"):
            file.unlink()
        namesrv.restart()
        until_sync(lambda: cluster.everywhere("user/ops"), "the table")
        assert "user/root" not in cluster.keys_at(namesrv)
        assert len(namesrv.events("first_user_created")) == created


def test_official_sdk_gets_through_a_quota_without_losing_a_message(
    cluster: Cluster, tmp_path: Path
) -> None:
    secret = cluster.command("user", "create", "hurried", "--generate")["secret_key"]
    cluster.command("acl", "create", "hurried", "--resource", "*", "--actions", "All")
    cluster.command("quota", "set", "User:hurried", "--messages-in", "20", "--messages-out", "40")
    [shown] = cluster.command("quota", "list")
    assert (shown["subject"], shown["messages_in"]) == ("User:hurried", 20)
    until_sync(lambda: cluster.everywhere("quota/User/hurried"), "the quota at all processes")
    until_sync(lambda: admitted(cluster, "hurried", secret), "the user at both proxies")
    credentials = ("hurried", secret)
    with Sdk(newest("python"), cluster.proxies[0].address, tmp_path, credentials) as sdk:
        begin = time.monotonic()
        bodies = sdk_cluster.send(sdk, "hurried", 80)
        assert time.monotonic() - begin > 1.5, "80 messages, of which 40 are a burst"
        subscriptions = {"hurried": sdk_cluster.ALL}
        sdk.do("simple", id="c", group="hurried", subscriptions=subscriptions, await_s=2)
        received: set[str] = set()

        def all_received() -> bool:
            found = sdk.do("receive", id="c", most=32, invisible_s=30)
            received.update(sdk_cluster.bodies_of(found))
            return len(received) == len(bodies)

        until_sync(all_received, "each message")
        assert received == set(bodies)
    cluster.command("quota", "delete", "User:hurried", "--yes")
    until_sync(lambda: cluster.nowhere("quota/User/hurried"), "the quota to be gone")
