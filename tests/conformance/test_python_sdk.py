"""The official Python SDK, unmodified, alone: the rows that test_sdks.py does not have.

Each test names its row of the acceptance catalogue (docs/compatibility.md lists them, and says what
each asks for). What comes after a while is waited for; that something does not come is shown by
what comes after it, or by the one wait that the row itself prescribes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from support.official_sdk import PythonSdk, SdkError
from support.polling import until_sync
from support.processes import ServiceProcess
from support.sdk_cluster import (
    ALL,
    INVISIBLE_S,
    SOON_S,
    Cluster,
    bodies_of,
    receive,
    sdk_cluster,
    send,
    simple,
)

pytestmark = pytest.mark.slow

UNAUTHORIZED = 40100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with sdk_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def sdk(cluster: Cluster) -> Iterator[PythonSdk]:
    with PythonSdk(cluster.proxy.address, cluster.home) as sdk:
        yield sdk


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


def test_f16_a_recall_is_refused_with_a_reason(cluster: Cluster, sdk: PythonSdk) -> None:
    topic = cluster.topic("MIXED")
    sdk.do("producer", id="p", topics=[topic])
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
