"""`aerobee client list`, `group members`, `group show`, `lite`: classic clients, those behind a
proxy, and those of lite topics."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from aerobee.broker.v1 import lite_pb2
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_client import AdminClient, Message, Producer, PushConsumer
from support.clock.polling import until_sync
from support.processes.command import Up, aerobee, aerobee_json
from support.stubs import Stub

TOPIC, GROUP = "orders", "billing"
PARENT, AGENTS = "sessions", "agents"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("data"), "--set", "brokerName=broker-a") as up:
        aerobee_json("topic", "create", TOPIC, namesrv=up.namesrv)
        yield up


@contextmanager
def sdk(up: Up, client_id: str, settings: d.Settings, group: str = "") -> Iterator[None]:
    """A client of the public protocol that has sent its settings and one heartbeat, and says that
    it ends."""
    metadata = [
        ("x-mq-client-id", client_id), ("x-mq-language", "GO"), ("x-mq-client-version", "5.1.4")
    ]  # fmt: skip
    commands: queue.Queue[s.TelemetryCommand | None] = queue.Queue()
    with grpc.insecure_channel(up.proxy) as channel:
        stub = Stub(s, channel)
        answers = stub.Telemetry(iter(commands.get, None), metadata=metadata, timeout=60)
        commands.put(s.TelemetryCommand(settings=settings))
        assert next(answers).status.code == d.Code.OK
        resource = d.Resource(name=group) if group else None
        beat = s.HeartbeatRequest(client_type=settings.client_type, group=resource)
        assert stub.Heartbeat(beat, metadata=metadata, timeout=10).status.code == d.Code.OK
        yield
        commands.put(None)
        end = s.NotifyClientTerminationRequest(group=resource)
        stub.NotifyClientTermination(end, metadata=metadata, timeout=10)


def consumer(expression: str) -> d.Settings:
    entry = d.SubscriptionEntry(
        topic=d.Resource(name=TOPIC),
        expression=d.FilterExpression(type=d.FilterType.TAG, expression=expression),
    )
    return d.Settings(
        client_type=d.ClientType.PUSH_CONSUMER,
        subscription=d.Subscription(group=d.Resource(name=GROUP), subscriptions=[entry]),
    )


def listed(up: Up, *options: str) -> dict[str, Any]:
    found = aerobee_json("client", "list", *options, namesrv=up.namesrv)
    return {client["client_id"]: client for client in found}


def test_clients_of_both_kinds_are_listed(up: Up) -> None:
    producer = d.Settings(
        client_type=d.ClientType.PRODUCER,
        publishing=d.Publishing(topics=[d.Resource(name=TOPIC)]),
    )
    with (
        sdk(up, "go-consumer", consumer("paid"), GROUP),
        sdk(up, "go-producer", producer),
        Producer("shop", namesrv=up.namesrv) as classic,
    ):
        classic.send(Message(TOPIC, b"x"))

        def found_own() -> list[Any]:
            return [each for each in listed(up).values() if each["producer_groups"] == ["shop"]]

        until_sync(lambda: "go-producer" in listed(up), "the producer is registered")
        until_sync(lambda: found_own()[0]["published_topics"] == [TOPIC], "its topic is known")
        found = listed(up)
        assert found["go-consumer"]["subscriptions"] == {TOPIC: "paid"}
        assert found["go-producer"]["published_topics"] == [TOPIC]
        for name in ("go-consumer", "go-producer"):
            client = found[name]
            assert (client["language"], client["version"]) == ("go", "5.1.4")
            assert client["proxy"].endswith(":" + up.proxy.rpartition(":")[2])
            assert client["address"].startswith("127.0.0.1:")
            assert 0 < client["since_timestamp_ms"] <= client["last_update_timestamp_ms"]
        (own,) = found_own()
        assert (own["language"], own["proxy"]) == ("python", "")
        of_topic = {"go-consumer", "go-producer", own["client_id"]}
        assert listed(up, "--topic", TOPIC).keys() == of_topic
        assert listed(up, "--group", GROUP).keys() == {"go-consumer"}
        assert listed(up, "--match", "GO 5.1", "--top", "1").keys() == {"go-consumer"}
        (running,) = aerobee_json("proxy", "list", namesrv=up.namesrv)
        assert listed(up, "--proxy", running["name"]).keys() == {"go-consumer", "go-producer"}
        table = aerobee("client", "list", namesrv=up.namesrv).stdout
        assert f"{TOPIC}=paid" in table and "go 5.1.4" in table
    until_sync(lambda: not {"go-producer", "go-consumer"} & listed(up).keys(), "they are gone")


def test_members_that_contradict_each_other_are_named(up: Up) -> None:
    def show() -> Any:
        return aerobee_json("group", "show", GROUP, namesrv=up.namesrv)

    with sdk(up, "go-consumer", consumer("paid"), GROUP):
        assert (show()["members"], show()["inconsistent_subscriptions"]) == (1, [])
        with PushConsumer(GROUP, print, namesrv=up.namesrv) as classic:
            classic.subscribe(TOPIC)
            until_sync(lambda: show()["inconsistent_subscriptions"], "they contradict each other")
            (conflict,) = show()["inconsistent_subscriptions"]
            assert conflict["topic"] == TOPIC
            assert conflict["expressions"]["paid"] == ["go-consumer"]
            members = aerobee("group", "members", GROUP, namesrv=up.namesrv)
            assert "go-consumer" in members.stdout and "warning: " in members.stderr
            assert len(aerobee_json("group", "members", GROUP, namesrv=up.namesrv)) == 2
            assert "paid" in aerobee("group", "show", GROUP, namesrv=up.namesrv).stdout
    assert aerobee("group", "members", "nobody", namesrv=up.namesrv).returncode == 1


async def fill_lite_topics(up: Up) -> None:
    """Three lite topics, one of which a client subscribes to."""
    aerobee_json("topic", "create", PARENT, "--type", "lite", namesrv=up.namesrv)
    aerobee_json("group", "create", AGENTS, "--lite-topic", PARENT, namesrv=up.namesrv)
    with AdminClient(up.namesrv) as admin:
        (broker,) = admin.cluster().brokers
    address = broker.addresses[0]
    with Producer(namesrv=up.namesrv) as producer:
        for name, count in (("b", 3), ("c", 2)):
            producer.send_batch([Message(PARENT, b"x", lite_topic=name)] * count)
    send = ("message", "send", PARENT, "x", "--lite-topic", "a")
    assert aerobee_json(*send, namesrv=up.namesrv)["topic"] == PARENT
    async with grpc.aio.insecure_channel(address) as channel:
        sync = lite_pb2.SyncLiteTopicsRequest(
            consumer_group=AGENTS, parent=PARENT, client_id="agent-1", lite_topics=["b"]
        )
        await Stub(lite_pb2, channel).SyncLiteTopics(sync, timeout=60)


async def test_lite_topics_and_their_clients_are_shown(up: Up) -> None:
    await fill_lite_topics(up)
    found = aerobee_json("lite", "list", PARENT, "--top", "2", namesrv=up.namesrv)
    assert [(each["lite_topic"], each["messages"]) for each in found] == [("b", 3), ("c", 2)]
    assert not any("lag" in each for each in found)  # whose would it be?
    found = aerobee_json("lite", "list", PARENT, "--group", AGENTS, namesrv=up.namesrv)
    assert [(each["lite_topic"], each["lag"], each["subscribers"]) for each in found] == [
        ("b", 3, 1), ("c", 2, 0), ("a", 1, 0)
    ]  # fmt: skip
    table = aerobee("lite", "list", PARENT, namesrv=up.namesrv)
    assert [line.split()[0] for line in table.stdout.splitlines() if "broker-a" in line] == list(
        "bca"
    )
    shown = aerobee_json("lite", "show", PARENT, "b", "--group", AGENTS, namesrv=up.namesrv)
    assert [(each["messages"], each["lag"]) for each in shown["queues"]] == [(3, 3)]
    assert shown["clients"] == [{"consumer_group": AGENTS, "client_id": "agent-1"}]
    assert "agent-1" in aerobee("lite", "show", PARENT, "b", namesrv=up.namesrv).stdout
    (client,) = aerobee_json("lite", "clients", PARENT, namesrv=up.namesrv)
    assert (client["client_id"], client["lite_topics"], client["ready"]) == ("agent-1", 1, 1)
    assert "agent-1" in aerobee("lite", "clients", PARENT, namesrv=up.namesrv).stdout
    progress = aerobee_json("group", "progress", AGENTS, "--topic", PARENT, namesrv=up.namesrv)
    assert sum(each["lag"] for each in progress) == 6
    assert {each["consumer_offset"] for each in progress} == {None}
    nowhere = ("group", "create", "g", "--lite-topic", "none")
    assert "--type lite" in aerobee(*nowhere, namesrv=up.namesrv).stderr
    for refused in (("show", PARENT, "none"), ("list", "none"), ("clients", "none")):
        done = aerobee("lite", *refused, namesrv=up.namesrv)
        assert (done.returncode, done.stdout) == (1, "") and "none" in done.stderr
