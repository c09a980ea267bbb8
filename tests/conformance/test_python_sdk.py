"""The official Python SDK, unmodified, against a name server, a broker and a proxy.

Each test names its row of the acceptance catalogue (docs/compatibility.md lists them, and says what
each asks for). What comes after a while is waited for; that something does not come is shown by
what comes after it, or by the one wait that the row itself prescribes.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from aerobee.broker.v1 import admin_pb2, admin_pb2_grpc
from aerobee.namesrv.v1.namesrv_pb2 import TopicConfig

from support.official_sdk import PythonSdk, SdkError
from support.polling import until_sync
from support.processes import ServiceProcess

pytestmark = pytest.mark.slow

UNAUTHORIZED = 40100
ILLEGAL_MESSAGE_TAG, INVALID_RECEIPT_HANDLE, ILLEGAL_FILTER_EXPRESSION = 40004, 40013, 40010
ALL = ("TAG", "*")
INVISIBLE_S = 10  # the least that there is
SOON_S = 60.0

NUMBERS = itertools.count()


@dataclass
class Cluster:
    namesrv: ServiceProcess
    broker: ServiceProcess
    proxy: ServiceProcess
    home: Path

    def topic(self, message_type: str = "NORMAL", queues: int = 4) -> str:
        """A new topic."""
        name = f"{message_type}_{next(NUMBERS)}"
        config = TopicConfig(
            topic=name,
            read_queue_count=queues,
            write_queue_count=queues,
            permission=6,
            attributes={"message.type": message_type},
        )
        with grpc.insecure_channel(self.broker.address) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            stub.PutTopic(admin_pb2.PutTopicRequest(topic=config), timeout=20)
        return name

    def group(self, **fields: Any) -> str:
        """A new consumer group: three deliveries, a second apart, unless told otherwise."""
        name = f"group_{next(NUMBERS)}"
        defaults: dict[str, Any] = {
            "consume_enable": True,
            "consume_from_min_enable": True,
            "retry_queue_count": 1,
            "retry_max_times": 2,
            "retry_delays_ms": [1_000],
        }
        config = admin_pb2.GroupConfig(consumer_group=name, **{**defaults, **fields})
        with grpc.insecure_channel(self.broker.address) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            stub.PutGroup(admin_pb2.PutGroupRequest(group=config), timeout=20)
        return name


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("cluster")
    with (
        ServiceProcess("aerobee_namesrv", "--port", "0", "--data", str(data)) as namesrv,
        ServiceProcess(
            *("aerobee_broker", "--port", "0", "--data", str(data)),
            *("--namesrv", namesrv.address, "--set", "enableMixedMessageType=true"),
        ) as broker,
        ServiceProcess("aerobee_proxy", "--port", "0", "--namesrv", namesrv.address) as proxy,
    ):
        yield Cluster(namesrv, broker, proxy, data)
        # Clients came and went, some without a word: nothing of that may be unforeseen.
        for defect in ("rpc failed", "handler failed", "background work failed"):
            assert not proxy.events(defect)


@pytest.fixture
def sdk(cluster: Cluster) -> Iterator[PythonSdk]:
    with PythonSdk(cluster.proxy.address, cluster.home) as sdk:
        yield sdk


def simple(sdk: PythonSdk, group: str, topic: str, wanted: tuple[str, str] = ALL) -> None:
    """A consumer "c" that waits up to 5 s for messages."""
    sdk.do("simple", id="c", group=group, subscriptions={topic: wanted}, await_s=5)


def receive(sdk: PythonSdk, count: int, *, ack: bool = True, most: int = 16) -> list[Any]:
    """That many messages, in the order they came."""
    found: list[Any] = []

    def enough() -> bool:
        for message in sdk.do("receive", id="c", most=most, invisible_s=INVISIBLE_S):
            found.append(message)
            if ack:
                sdk.do("ack", id="c", message_id=message["message_id"])
        return len(found) >= count

    until_sync(enough, f"{count} messages", timeout_s=SOON_S)
    return found


def dead_letters(cluster: Cluster, sdk: PythonSdk, group: str) -> list[str]:
    """The first body among them. Their topic comes to be with the first."""
    simple(sdk, cluster.group(), f"%DLQ%{group}")
    found: list[Any] = until_sync(
        lambda: sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S),
        "a dead letter",
        timeout_s=SOON_S,
        retry_on=(SdkError,),
    )
    return bodies_of(found)


def send(sdk: PythonSdk, topic: str, count: int, **fields: Any) -> list[str]:
    """The bodies of messages sent by a new producer "p"."""
    sdk.do("producer", id="p", topics=[topic])
    bodies = [f"{topic} {number}" for number in range(count)]
    for body in bodies:
        sdk.do("send", id="p", topic=topic, body=body, **fields)
    return bodies


def bodies_of(messages: list[Any]) -> list[str]:
    return [message["body"] for message in messages]


# ---- sending ----


def test_f1_a_producer_starts_and_ends(cluster: Cluster, sdk: PythonSdk) -> None:
    sdk.do("producer", id="p", topics=[cluster.topic()])
    sdk.do("close", id="p")


def test_f2_normal_messages_keep_the_ids_of_their_client(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic()
    sdk.do("producer", id="p", topics=[topic])
    receipts = [
        sdk.do(
            "send", id="p", topic=topic, body="grüße 😀", tag="a", keys="k", properties={"x": "1"}
        )
        for _ in range(10)
    ]
    ids = {receipt["message_id"] for receipt in receipts}
    assert len(ids) == 10 and all(len(text) == 34 and int(text, 16) for text in ids)
    assert all(receipt["offset"] >= 0 for receipt in receipts)


def test_f23_a_message_of_another_type_than_its_topic_takes_is_refused(
    cluster: Cluster, sdk: PythonSdk
) -> None:
    topic = cluster.topic("NORMAL")
    sdk.do("producer", id="p", topics=[topic])
    with pytest.raises(SdkError):
        sdk.do("send", id="p", topic=topic, body="ordered", group="g")


def test_f24_limits_of_a_message(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic()
    sdk.do("producer", id="p", topics=[topic])
    many = {f"k{number}": "v" for number in range(128)}
    sdk.do("send", id="p", topic=topic, size=4 * 1024 * 1024)
    sdk.do("send", id="p", topic=topic, body="x", properties=many)
    sdk.do("send", id="p", topic=topic, body="x", properties={"k": "v" * 16_383})
    refused: list[dict[str, Any]] = [
        {"size": 4 * 1024 * 1024 + 1},
        {"body": "x", "properties": {**many, "one": "more"}},
        {"body": "x", "properties": {"k": "v" * 16_384}},
        {"body": "x", "properties": {"UNIQ_KEY": "mine"}},
        {"body": "x", "tag": "a\x01"},
    ]
    for fields in refused:
        with pytest.raises(SdkError):
            sdk.do("send", id="p", topic=topic, **fields)


def test_an_unknown_topic_is_made_with_room_for_every_type(sdk: PythonSdk) -> None:
    topic = f"fresh_{next(NUMBERS)}"
    sdk.do("producer", id="p", topics=[topic])
    sdk.do("send", id="p", topic=topic, body="normal")
    sdk.do("send", id="p", topic=topic, body="ordered", group="g")


# ---- simple consumers ----


def test_f3_what_was_sent_is_received_unchanged_and_once(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("TAG", "a"))
    sdk.do("producer", id="p", topics=[topic])
    sent = {
        sdk.do(
            "send", id="p", topic=topic, body=f"b{n} 😀", tag="a", keys="k", properties={"x": "1"}
        )["message_id"]: f"b{n} 😀"
        for n in range(10)
    }
    messages = receive(sdk, 10)
    assert {m["message_id"]: m["body"] for m in messages} == sent
    for message in messages:
        assert (message["tag"], message["keys"], message["attempt"]) == ("a", ["k"], 1)
        assert message["properties"]["x"] == "1" and not message["corrupted"]
    # Twice as long as they were invisible for.
    until = time.monotonic() + 2 * INVISIBLE_S
    while time.monotonic() < until:
        assert sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S) == []


def test_f4_nothing_to_receive_is_no_error(cluster: Cluster, sdk: PythonSdk) -> None:
    simple(sdk, cluster.group(), cluster.topic())
    assert sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S) == []


def test_f5_what_is_not_acknowledged_comes_again(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    send(sdk, topic, 1)
    (first,) = receive(sdk, 1, ack=False, most=1)
    (again,) = receive(sdk, 1, most=1)
    assert (again["message_id"], again["attempt"]) == (first["message_id"], 2)
    assert again["at"] - first["at"] >= INVISIBLE_S - 1


def test_f6_a_message_stays_away_for_as_long_as_asked_anew(
    cluster: Cluster, sdk: PythonSdk
) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    (body,) = send(sdk, topic, 1)
    (message,) = receive(sdk, 1, ack=False, most=1)
    sdk.do("change", id="c", message_id=message["message_id"], invisible_s=20)
    until = time.monotonic() + INVISIBLE_S + 2
    while time.monotonic() < until:
        assert sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S) == []
    sdk.do("ack", id="c", message_id=message["message_id"])
    sdk.do("send", id="p", topic=topic, body="after")
    assert body not in bodies_of(receive(sdk, 1))


def test_f7_an_acknowledgement_that_comes_too_late_is_refused(
    cluster: Cluster, sdk: PythonSdk
) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    send(sdk, topic, 1)
    (message,) = receive(sdk, 1, ack=False, most=1)
    time.sleep(INVISIBLE_S + 1)
    with pytest.raises(SdkError, match=str(INVALID_RECEIPT_HANDLE)):
        sdk.do("ack", id="c", message_id=message["message_id"])
    (again,) = receive(sdk, 1)
    assert again["message_id"] == message["message_id"]


def test_f8_no_more_than_32_messages_come_at_once(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    sent = send(sdk, topic, 100)
    found: list[str] = []

    def all_received() -> bool:
        batch = sdk.do("receive", id="c", most=50, invisible_s=60)
        assert len(batch) <= 32
        for message in batch:
            sdk.do("ack", id="c", message_id=message["message_id"])
        found.extend(bodies_of(batch))
        return len(found) >= len(sent)

    until_sync(all_received, "all messages", timeout_s=SOON_S)
    assert sorted(found) == sorted(sent)


@pytest.mark.parametrize("expression", ["A||B", " A || B ", "A||||B"])
def test_f19_only_the_tags_that_were_asked_for_come(
    cluster: Cluster, sdk: PythonSdk, expression: str
) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("TAG", expression))
    sdk.do("producer", id="p", topics=[topic])
    for tag in ("A", "C", "a", "B"):
        sdk.do("send", id="p", topic=topic, body=tag, tag=tag)
    assert sorted(bodies_of(receive(sdk, 2))) == ["A", "B"]


def test_f19_tags_of_equal_hash_are_told_apart(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("TAG", "BBBB"))
    sdk.do("producer", id="p", topics=[topic])
    for tag in ("AaAa", "BBBB"):
        sdk.do("send", id="p", topic=topic, body=tag, tag=tag)
    assert bodies_of(receive(sdk, 1)) == ["BBBB"]


@pytest.mark.parametrize(
    ("condition", "bodies"),
    [
        ("price > 20", ["30"]),
        ("TAGS IN ('A') AND price BETWEEN 5 AND 20", ["10"]),
        ("region IS NULL", ["10"]),
    ],
)
def test_f20_only_what_fulfils_a_condition_comes(
    cluster: Cluster, sdk: PythonSdk, condition: str, bodies: list[str]
) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("SQL", condition))
    sdk.do("producer", id="p", topics=[topic])
    sdk.do("send", id="p", topic=topic, body="10", tag="A", properties={"price": "10"})
    sdk.do(
        "send", id="p", topic=topic, body="30", tag="A", properties={"price": "30", "region": "eu"}
    )
    assert bodies_of(receive(sdk, 1)) == bodies


def test_f20_a_condition_that_cannot_be_read_is_refused(cluster: Cluster, sdk: PythonSdk) -> None:
    simple(sdk, cluster.group(), cluster.topic(), ("SQL", "price >"))
    with pytest.raises(SdkError, match=str(ILLEGAL_FILTER_EXPRESSION)):
        sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S)


def test_f21_two_members_of_a_group_share_the_messages(cluster: Cluster, sdk: PythonSdk) -> None:
    topic, group = cluster.topic(), cluster.group()
    for member in ("one", "two"):
        sdk.do("push", id=member, group=group, subscriptions={topic: ALL})
    sent = send(sdk, topic, 100)

    def delivered() -> list[str]:
        return bodies_of([m for member in ("one", "two") for m in sdk.events("delivered", member)])

    until_sync(lambda: len(delivered()) >= 100, "all messages", timeout_s=SOON_S)
    assert sorted(delivered()) == sorted(sent)


def test_f22_every_group_gets_every_message(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic()
    for group in ("one", "two"):
        sdk.do("push", id=group, group=cluster.group(), subscriptions={topic: ALL})
    sent = send(sdk, topic, 20)
    for group in ("one", "two"):
        until_sync(
            lambda group=group: len(sdk.events("delivered", group)) >= 20,  # type: ignore[misc]
            "all messages",
            timeout_s=SOON_S,
        )
        assert sorted(bodies_of(sdk.events("delivered", group))) == sorted(sent)


# ---- push consumers ----


def test_f9_a_listener_gets_every_message_once(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic()
    sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL})
    sent = send(sdk, topic, 10)
    until_sync(lambda: len(sdk.events("delivered", "c")) >= 10, "deliveries", timeout_s=SOON_S)
    assert sorted(bodies_of(sdk.events("delivered", "c"))) == sorted(sent)


def test_f9_a_lease_is_renewed_while_the_listener_works(cluster: Cluster, sdk: PythonSdk) -> None:
    """75 s, longer than a lease of 60 s; what came again would be delivered while it sleeps."""
    topic = cluster.topic()
    sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL}, sleep_s=75)
    send(sdk, topic, 1)
    until_sync(lambda: sdk.events("delivered", "c"), "the delivery", timeout_s=SOON_S)
    time.sleep(80)
    assert len(sdk.events("delivered", "c")) == 1


def test_f10_a_failure_is_delivered_again(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic()
    sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL}, succeed_from=2)
    send(sdk, topic, 1)
    until_sync(lambda: len(sdk.events("delivered", "c")) >= 2, "a retry", timeout_s=SOON_S)
    assert [event["attempt"] for event in sdk.events("delivered", "c")] == [1, 2]


def test_f11_what_always_fails_becomes_a_dead_letter(cluster: Cluster, sdk: PythonSdk) -> None:
    topic, group = cluster.topic(), cluster.group(retry_max_times=2)
    sdk.do("push", id="f", group=group, subscriptions={topic: ALL}, succeed_from=99)
    (body,) = send(sdk, topic, 1)
    until_sync(lambda: len(sdk.events("delivered", "f")) >= 3, "3 deliveries", timeout_s=SOON_S)
    assert dead_letters(cluster, sdk, group) == [body]
    assert [event["attempt"] for event in sdk.events("delivered", "f")] == [1, 2, 3]


# ---- order ----


@pytest.mark.parametrize("groups", [1, 3])
def test_f12_messages_of_one_group_come_in_order(
    cluster: Cluster, sdk: PythonSdk, groups: int
) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group(consume_message_orderly=True)
    sdk.do("push", id="c", group=group, subscriptions={topic: ALL})
    sdk.do("producer", id="p", topics=[topic])
    for number in range(20):
        sdk.do("send", id="p", topic=topic, body=str(number), group=f"g{number % groups}")
    until_sync(lambda: len(sdk.events("delivered", "c")) >= 20, "deliveries", timeout_s=SOON_S)
    for name in range(groups):
        own = [
            int(event["body"])
            for event in sdk.events("delivered", "c")
            if event["group"] == f"g{name}"
        ]
        assert own == list(range(name, 20, groups))


def test_f12_a_failure_is_retried_in_its_place(cluster: Cluster, sdk: PythonSdk) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group(consume_message_orderly=True)
    only = ["1", "3"]
    sdk.do("push", id="c", group=group, subscriptions={topic: ALL}, succeed_from=2, only=only)
    sdk.do("producer", id="p", topics=[topic])
    for number in range(5):
        sdk.do("send", id="p", topic=topic, body=str(number), group="g")
    until_sync(lambda: len(sdk.events("delivered", "c")) >= 7, "deliveries", timeout_s=SOON_S)
    assert bodies_of(sdk.events("delivered", "c")) == ["0", "1", "1", "2", "3", "3", "4"]


def test_f13_a_message_that_is_given_up_lets_the_next_proceed(
    cluster: Cluster, sdk: PythonSdk
) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group(consume_message_orderly=True)
    subscriptions = {topic: ALL}
    sdk.do("push", id="f", group=group, subscriptions=subscriptions, succeed_from=99, only=["bad"])
    sdk.do("producer", id="p", topics=[topic])
    for body in ("bad", "next"):
        sdk.do("send", id="p", topic=topic, body=body, group="g")
    until_sync(
        lambda: "next" in bodies_of(sdk.events("delivered", "f")), "the next", timeout_s=SOON_S
    )
    assert dead_letters(cluster, sdk, group) == ["bad"]


def test_f14_what_comes_again_begins_with_the_first_that_was_not_acknowledged(
    cluster: Cluster, sdk: PythonSdk
) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group(consume_message_orderly=True)
    simple(sdk, group, topic)
    sent = send(sdk, topic, 3, group="g")
    first = receive(sdk, 3, ack=False, most=3)
    assert bodies_of(first) == sent
    for message in first[1:]:
        sdk.do("ack", id="c", message_id=message["message_id"])
    assert bodies_of(receive(sdk, 3, most=3)) == sent


# ---- delay ----


def test_f15_a_message_comes_at_its_time_and_not_before(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic("DELAY")
    simple(sdk, cluster.group(), topic)
    sdk.do("producer", id="p", topics=[topic])
    deliver_at = int(time.time()) + 10
    sdk.do("send", id="p", topic=topic, body="later", deliver_at=deliver_at)
    sdk.do("send", id="p", topic=topic, body="now", deliver_at=int(time.time()) - 20)
    now, later = receive(sdk, 2)
    assert (now["body"], later["body"]) == ("now", "later")
    assert now["at"] < deliver_at <= later["at"]


def test_f15_a_time_more_than_a_day_ahead_is_refused(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic("DELAY")
    sdk.do("producer", id="p", topics=[topic])
    with pytest.raises(SdkError, match="ahead"):
        sdk.do("send", id="p", topic=topic, body="x", deliver_at=int(time.time()) + 25 * 3_600)


# ---- priority ----


def test_f27_what_is_more_urgent_comes_first(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic("PRIORITY", queues=10)
    sdk.do("producer", id="p", topics=[topic])
    priorities = [3, 0, 9, 5, 1, 7, 2, 8, 6, 4]
    for priority in priorities:
        sdk.do("send", id="p", topic=topic, body=str(priority), priority=priority)
    simple(sdk, cluster.group(), topic)
    found = receive(sdk, 10, most=4)
    assert [message["priority"] for message in found] == sorted(priorities, reverse=True)
    assert bodies_of(found) == [str(message["priority"]) for message in found]
    with pytest.raises(SdkError):
        sdk.do("send", id="p", topic=topic, body="no priority")


# ---- who may call ----


@pytest.fixture(scope="module")
def guarded(cluster: Cluster) -> Iterator[ServiceProcess]:
    """A proxy beside the other that wants to know who calls."""
    users = cluster.home / "users.json"
    everything = [{"resource": ["Topic:*", "Group:*"], "actions": ["Pub", "Sub"]}]
    app = {"username": "app", "password": "right", "policies": everything}
    reader = {
        "username": "reader",
        "password": "right",
        "policies": [{"resource": "*", "actions": "Sub"}],
    }
    users.write_text(json.dumps({"users": [app, reader]}))
    users.chmod(0o600)
    with ServiceProcess(
        *("aerobee_proxy", "--port", "0", "--namesrv", cluster.namesrv.address),
        *("--set", "authenticationEnabled=true", "--set", f"authenticationUsersFile={users}"),
        *("--set", "authorizationEnabled=true"),
    ) as proxy:
        yield proxy
        assert "right" not in proxy.output, "a secret was logged"


def test_f25_the_right_secret_passes(cluster: Cluster, guarded: ServiceProcess) -> None:
    topic, group = cluster.topic(), cluster.group()
    with PythonSdk(guarded.address, cluster.home, ("app", "right")) as sdk:
        sdk.do("push", id="c", group=group, subscriptions={topic: ALL})
        sent = send(sdk, topic, 3)
        until_sync(
            lambda: sorted(bodies_of(sdk.events("delivered", "c"))) == sorted(sent),
            "deliveries",
            timeout_s=SOON_S,
        )
        other = cluster.topic()
        bodies = send(sdk, other, 3)
        sdk.do("simple", id="s", group=cluster.group(), subscriptions={other: ALL}, await_s=5)
        found = until_sync(
            lambda: sdk.do("receive", id="s", most=16, invisible_s=INVISIBLE_S),
            "messages",
            timeout_s=SOON_S,
        )
        for message in found:
            assert message["body"] in bodies
            sdk.do("ack", id="s", message_id=message["message_id"])


@pytest.mark.parametrize("credentials", [("app", "wrong"), ("other", "right"), ("", "")])
def test_f25_another_secret_does_not(
    cluster: Cluster, guarded: ServiceProcess, credentials: tuple[str, str]
) -> None:
    topic = cluster.topic()
    with PythonSdk(guarded.address, cluster.home, credentials) as sdk:
        sdk.do("producer", id="p", topics=[topic])
        with pytest.raises(SdkError, match="failed to fetch"):
            sdk.do("send", id="p", topic=topic, body="x")
        simple(sdk, cluster.group(), topic)
        with pytest.raises(SdkError):
            receive(sdk, 1)
    assert guarded.events("call refused")


def test_f25_a_user_who_may_only_read_sends_nothing(
    cluster: Cluster, guarded: ServiceProcess, sdk: PythonSdk
) -> None:
    topic = cluster.topic()
    sent = send(sdk, topic, 1)
    with PythonSdk(guarded.address, cluster.home, ("reader", "right")) as reader:
        simple(reader, cluster.group(), topic)
        assert bodies_of(receive(reader, 1)) == sent
        reader.do("producer", id="p", topics=[topic])
        with pytest.raises(SdkError, match="lacks Pub on") as caught:
            reader.do("send", id="p", topic=topic, body="x")
        assert caught.value.code == UNAUTHORIZED


# ---- what is not offered is refused ----


def test_f16_f17_transactions_and_recalls_are_refused_with_a_reason(
    cluster: Cluster, sdk: PythonSdk
) -> None:
    topic = cluster.topic("MIXED")
    sdk.do("producer", id="p", topics=[topic], resolution="COMMIT")
    with pytest.raises(SdkError, match="transactional"):
        sdk.do("send", id="p", topic=topic, body="x", transaction="t")
    with pytest.raises(SdkError, match="recalls are not offered"):
        sdk.do("recall", id="p", topic=topic, handle="x")


# ---- restarts ----


@pytest.mark.parametrize("service", ["proxy", "broker"])
def test_f26_a_push_consumer_goes_on_after_a_service_was_killed(
    cluster: Cluster, sdk: PythonSdk, service: str
) -> None:
    topic = cluster.topic()
    sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL})
    before = send(sdk, topic, 5)
    until_sync(lambda: len(sdk.events("delivered", "c")) >= 5, "deliveries", timeout_s=SOON_S)
    process: ServiceProcess = getattr(cluster, service)
    process.kill()
    process.restart()
    until_sync(
        lambda: sdk.do("send", id="p", topic=topic, body="after"),
        "a send",
        timeout_s=SOON_S,
        retry_on=(SdkError,),
    )
    until_sync(lambda: "after" in bodies_of(sdk.events("delivered", "c")), "it", timeout_s=SOON_S)
    assert {*bodies_of(sdk.events("delivered", "c"))} == {*before, "after"}
