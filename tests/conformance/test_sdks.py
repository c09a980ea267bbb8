"""The official SDKs, unmodified, against a name server, a broker and a proxy.

Each scenario names its row of the acceptance catalogue (docs/compatibility.md lists them, and says
what each asks for). What comes after a while is waited for; that something does not come is shown
by what comes after it, or by the one wait that the row itself prescribes. Because they mostly wait,
the scenarios run side by side, each with topics, groups and clients of its own; a test then says
how its scenario ended. Row F26, restarts, is in tests/fault/crash/test_sdk_restarts.py.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from support.clock.polling import until_sync
from support.processes.service import ServiceProcess
from support.proxy.official_sdk import NodeSdk, PythonSdk, Sdk, SdkError
from support.proxy.sdk_cluster import (
    ALL,
    INVISIBLE_S,
    NUMBERS,
    RETRY_DELAY_S,
    SOON_S,
    Clients,
    Cluster,
    Commands,
    bodies_of,
    dead_letters,
    delivered,
    receive,
    sdk_cluster,
    send,
    simple,
)

pytestmark = pytest.mark.slow

INVALID_RECEIPT_HANDLE, ILLEGAL_FILTER_EXPRESSION = 40013, 40010
INVALID_TRANSACTION_ID = 40008
CHECK_FROM_S, CHECK_TO_S = 6, 40  # after the half message
# Of push consumers' messages here, so that renewing them does not take the minute it is elsewhere.
LEASE_S = 15
# Python's SDK does one thing at a time, so that every scenario needs a process.
PYTHON_PROCESSES = 8
SDKS = ("python", "node")
SECRET = "right-horse"
UNAUTHORIZED = 40100
CLOCK_S = 0.2  # by which the SDK may see a delivery later than the broker made it


@dataclass(frozen=True)
class Case:
    sdk: str
    function: Callable[..., None]
    parameters: dict[str, Any]
    credentials: bool


CASES: dict[str, Case] = {}


def scenario(
    *parameters: dict[str, Any], credentials: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A case for each SDK and each of the parameter sets. The longest are to be declared first.

    The function gets the cluster and the SDK; with `credentials`, instead of the SDK, what makes
    one with an access key and a secret key, for a proxy that asks for them.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        for sdk in SDKS:
            for place, chosen in enumerate(parameters or ({},)):
                suffix = f"_{place + 1}" if parameters else ""
                name = f"{sdk}-{function.__name__}{suffix}"
                CASES[name] = Case(sdk, function, chosen, credentials)
        return function

    return declare


class Runs:
    """Runs cases. Python's SDK gets a process for each, Node.js' one for nearly all."""

    def __init__(self, cluster: Cluster, guarded: ServiceProcess) -> None:
        self._cluster = cluster
        self._guarded = guarded
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._node: NodeSdk | None = None
        self._pools = {
            "python": ThreadPoolExecutor(PYTHON_PROCESSES),
            "node": ThreadPoolExecutor(len(CASES)),
        }
        self.futures: dict[str, Future[None]] = {}

    def start(self, name: str) -> None:
        case = CASES[name]
        run = {"python": self._in_python, "node": self._in_node}[case.sdk]
        if case.credentials:
            run = self._with_credentials
        self.futures[name] = self._pools[case.sdk].submit(run, case)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)
        self._stack.close()

    def _with_credentials(self, case: Case) -> None:
        make = {"python": PythonSdk, "node": NodeSdk}[case.sdk]
        guarded = functools.partial(make, self._guarded.address, self._cluster.home)
        case.function(self._cluster, guarded, **case.parameters)

    def _in_python(self, case: Case) -> None:
        with PythonSdk(self._cluster.proxy.address, self._cluster.home) as sdk:
            case.function(self._cluster, sdk, **case.parameters)

    def _in_node(self, case: Case) -> None:
        with self._lock:
            if self._node is None:
                made = NodeSdk(self._cluster.proxy.address, self._cluster.home)
                self._node = self._stack.enter_context(made)
        case.function(self._cluster, Clients(self._node), **case.parameters)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = ("--set", f"defaultInvisibleTimeMills={LEASE_S * 1_000}")
    with sdk_cluster(tmp_path_factory.mktemp("cluster"), *options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def guarded(cluster: Cluster) -> Iterator[ServiceProcess]:
    """A proxy beside the other that wants to know who calls."""
    users = cluster.home / "users.json"
    everything = [{"resource": ["Topic:*", "Group:*"], "actions": ["Pub", "Sub"]}]
    app = {"username": "app", "password": SECRET, "policies": everything}
    reader = {
        "username": "reader",
        "password": SECRET,
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
        assert SECRET not in proxy.output, "a secret was logged"


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, cluster: Cluster, guarded: ServiceProcess
) -> Iterator[Runs]:
    """All cases that this session selected, started at once."""
    started = Runs(cluster, guarded)
    try:
        for item in request.session.items:
            if isinstance(item, pytest.Function) and item.originalname == "test_the_sdk_does":
                started.start(str(item.callspec.params["case"]))
        yield started
    finally:
        started.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Once all scenarios are declared."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(CASES))


def test_the_sdk_does(runs: Runs, case: str) -> None:
    runs.futures[case].result()


# ---- what takes long ----


@scenario()
def f3_what_was_sent_is_received_unchanged_and_once(cluster: Cluster, sdk: Commands) -> None:
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


@scenario()
def f9_a_lease_is_renewed_while_the_listener_works(cluster: Cluster, sdk: Commands) -> None:
    """What came again would be delivered while the listener sleeps."""
    topic = cluster.topic()
    sleep_s = LEASE_S + 5
    sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL}, sleep_s=sleep_s)
    send(sdk, topic, 1)
    delivered(sdk, "c", 1)
    time.sleep(sleep_s + 2)
    assert len(sdk.events("delivered", "c")) == 1


@scenario()
def f6_a_message_stays_away_for_as_long_as_asked_anew(cluster: Cluster, sdk: Commands) -> None:
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


@scenario()
def f7_an_acknowledgement_that_comes_too_late_is_refused(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    send(sdk, topic, 1)
    (message,) = receive(sdk, 1, ack=False, most=1)
    time.sleep(INVISIBLE_S + 1)
    with pytest.raises(SdkError, match=str(INVALID_RECEIPT_HANDLE)):
        sdk.do("ack", id="c", message_id=message["message_id"])
    (again,) = receive(sdk, 1)
    assert again["message_id"] == message["message_id"]


@scenario()
def f14_what_comes_again_begins_with_the_first_that_was_not_acknowledged(
    cluster: Cluster, sdk: Commands
) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group(consume_message_orderly=True)
    simple(sdk, group, topic)
    sent = send(sdk, topic, 3, group="g")
    first = receive(sdk, 3, ack=False, most=3)
    assert bodies_of(first) == sent
    for message in first[1:]:
        sdk.do("ack", id="c", message_id=message["message_id"])
    assert bodies_of(receive(sdk, 3, most=3)) == sent


@scenario()
def f5_what_is_not_acknowledged_comes_again(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic)
    send(sdk, topic, 1)
    asked_at = time.time()
    (first,) = receive(sdk, 1, ack=False, most=1)
    (again,) = receive(sdk, 1, most=1)
    assert (again["message_id"], again["attempt"]) == (first["message_id"], 2)
    assert again["at"] - asked_at >= INVISIBLE_S


@scenario()
def f15_a_message_comes_at_its_time_and_not_before(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("DELAY")
    simple(sdk, cluster.group(), topic)
    sdk.do("producer", id="p", topics=[topic])
    deliver_at = int(time.time()) + 12  # no delay level
    sdk.do("send", id="p", topic=topic, body="later", deliver_at=deliver_at)
    sdk.do("send", id="p", topic=topic, body="now", deliver_at=int(time.time()) - 20)
    now, later = receive(sdk, 2)
    assert (now["body"], later["body"]) == ("now", "later")
    assert now["at"] < deliver_at <= later["at"]


# ---- sending ----


@scenario()
def f1_a_producer_starts_and_ends(cluster: Cluster, sdk: Commands) -> None:
    sdk.do("producer", id="p", topics=[cluster.topic()])
    sdk.do("close", id="p")


@scenario()
def f1_a_client_of_two_topics_starts(cluster: Cluster, sdk: Commands) -> None:
    """Node.js' SDK misses an answer to its settings that comes while it still asks for routes."""
    topics = [cluster.topic(), cluster.topic()]
    every = dict.fromkeys(topics, ALL)
    sdk.do("push", id="f", group=cluster.group(), subscriptions=every)
    sdk.do("simple", id="c", group=cluster.group(), subscriptions=every, await_s=5)
    sdk.do("producer", id="p", topics=topics)
    for topic in topics:
        sdk.do("send", id="p", topic=topic, body=topic)
    assert sorted(bodies_of(delivered(sdk, "f", 2))) == sorted(topics)
    assert sorted(bodies_of(receive(sdk, 2))) == sorted(topics)


@scenario()
def f2_normal_messages_keep_the_ids_of_their_client(cluster: Cluster, sdk: Commands) -> None:
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


@scenario()
def f23_a_message_of_another_type_than_its_topic_takes_is_refused(
    cluster: Cluster, sdk: Commands
) -> None:
    topic = cluster.topic("NORMAL")
    sdk.do("producer", id="p", topics=[topic])
    with pytest.raises(SdkError):
        sdk.do("send", id="p", topic=topic, body="ordered", group="g")


@scenario()
def f24_limits_of_a_message(cluster: Cluster, sdk: Commands) -> None:
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


@scenario()
def an_unknown_topic_is_made_with_room_for_every_type(_: Cluster, sdk: Commands) -> None:
    topic = f"fresh_{next(NUMBERS)}"
    sdk.do("producer", id="p", topics=[topic])
    sdk.do("send", id="p", topic=topic, body="normal")
    sdk.do("send", id="p", topic=topic, body="ordered", group="g")


# ---- simple consumers ----


@scenario()
def f4_nothing_to_receive_is_no_error(cluster: Cluster, sdk: Commands) -> None:
    simple(sdk, cluster.group(), cluster.topic())
    assert sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S) == []


@scenario()
def f8_no_more_than_32_messages_come_at_once(cluster: Cluster, sdk: Commands) -> None:
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


@scenario(*({"expression": text} for text in ("A||B", " A || B ", "A||||B")))
def f19_only_the_tags_that_were_asked_for_come(
    cluster: Cluster, sdk: Commands, expression: str
) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("TAG", expression))
    sdk.do("producer", id="p", topics=[topic])
    for tag in ("A", "C", "a", "B"):
        sdk.do("send", id="p", topic=topic, body=tag, tag=tag)
    assert sorted(bodies_of(receive(sdk, 2))) == ["A", "B"]


@scenario()
def f19_tags_of_equal_hash_are_told_apart(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("TAG", "BBBB"))
    sdk.do("producer", id="p", topics=[topic])
    for tag in ("AaAa", "BBBB"):
        sdk.do("send", id="p", topic=topic, body=tag, tag=tag)
    assert bodies_of(receive(sdk, 1)) == ["BBBB"]


@scenario(
    {"condition": "price > 20", "bodies": ["30"]},
    {"condition": "TAGS IN ('A') AND price BETWEEN 5 AND 20", "bodies": ["10"]},
    {"condition": "region IS NULL", "bodies": ["10"]},
)
def f20_only_what_fulfils_a_condition_comes(
    cluster: Cluster, sdk: Commands, condition: str, bodies: list[str]
) -> None:
    topic = cluster.topic()
    simple(sdk, cluster.group(), topic, ("SQL", condition))
    sdk.do("producer", id="p", topics=[topic])
    sdk.do("send", id="p", topic=topic, body="10", tag="A", properties={"price": "10"})
    sdk.do(
        "send", id="p", topic=topic, body="30", tag="A", properties={"price": "30", "region": "eu"}
    )
    assert bodies_of(receive(sdk, 1)) == bodies


@scenario()
def f20_a_condition_that_cannot_be_read_is_refused(cluster: Cluster, sdk: Commands) -> None:
    simple(sdk, cluster.group(), cluster.topic(), ("SQL", "price >"))
    with pytest.raises(SdkError, match=str(ILLEGAL_FILTER_EXPRESSION)):
        sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S)


@scenario()
def f21_two_members_of_a_group_share_the_messages(cluster: Cluster, sdk: Commands) -> None:
    topic, group = cluster.topic(), cluster.group()
    for member in ("one", "two"):
        sdk.do("push", id=member, group=group, subscriptions={topic: ALL})
    sent = send(sdk, topic, 100)

    def found() -> list[str]:
        return bodies_of([m for member in ("one", "two") for m in sdk.events("delivered", member)])

    until_sync(lambda: len(found()) >= 100, "all messages", timeout_s=SOON_S)
    assert sorted(found()) == sorted(sent)


@scenario()
def f22_every_group_gets_every_message(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    for group in ("one", "two"):
        sdk.do("push", id=group, group=cluster.group(), subscriptions={topic: ALL})
    sent = send(sdk, topic, 20)
    for group in ("one", "two"):
        assert sorted(bodies_of(delivered(sdk, group, 20))) == sorted(sent)


# ---- transactions ----


@scenario({"resolution": "COMMIT"}, {"resolution": "ROLLBACK"})
def f18_a_producer_is_asked_about_what_it_never_ended(
    cluster: Cluster, sdk: Commands, resolution: str
) -> None:
    topic = cluster.topic("MIXED")
    simple(sdk, cluster.group(), topic)
    sdk.do("producer", id="p", topics=[topic], resolution=resolution)
    half_at = time.time()
    sdk.do("send", id="p", topic=topic, body="half", transaction="t", properties={"x": "1"})
    until_sync(lambda: sdk.events("check", "p"), "the checker is called", timeout_s=SOON_S)
    (check,) = sdk.events("check", "p")
    assert (check["body"], check["properties"], check["corrupted"]) == ("half", {"x": "1"}, False)
    assert CHECK_FROM_S <= check["at"] - half_at <= CHECK_TO_S
    if resolution == "COMMIT":
        assert bodies_of(receive(sdk, 1)) == ["half"]
    sdk.do("send", id="p", topic=topic, body="next")
    assert bodies_of(receive(sdk, 1)) == ["next"]
    assert len(sdk.events("check", "p")) == 1
    with pytest.raises(SdkError) as caught:
        sdk.do("commit", transaction="t")
    assert caught.value.code in (INVALID_TRANSACTION_ID, None)  # one SDK hides the code


@scenario()
def f17_a_half_message_is_seen_when_it_is_committed(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("TRANSACTION")
    simple(sdk, cluster.group(), topic)
    sdk.do("producer", id="p", topics=[topic], resolution="COMMIT")
    sent = {
        name: sdk.do("send", id="p", topic=topic, body=name, transaction=name, tag="a")
        for name in ("kept", "dropped")
    }
    assert sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S) == []
    sdk.do("rollback", transaction="dropped")
    sdk.do("commit", transaction="kept")
    (message,) = receive(sdk, 1)
    assert (message["body"], message["tag"], message["attempt"]) == ("kept", "a", 1)
    assert message["message_id"] == sent["kept"]["message_id"]
    sdk.do("send", id="p", topic=topic, body="next", transaction="next")
    sdk.do("commit", transaction="next")
    assert bodies_of(receive(sdk, 1)) == ["next"]
    assert sdk.events("check", "p") == []


# ---- push consumers ----


@scenario()
def f9_a_listener_gets_every_message_once(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL})
    sent = send(sdk, topic, 10)
    assert sorted(bodies_of(delivered(sdk, "c", 10))) == sorted(sent)


@scenario()
def f10_a_failure_is_delivered_again(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic()
    sdk.do("push", id="c", group=cluster.group(), subscriptions={topic: ALL}, succeed_from=2)
    send(sdk, topic, 1)
    first, again = delivered(sdk, "c", 2)
    assert (first["attempt"], again["attempt"]) == (1, 2)
    # Not before its group's retry delay, which Node.js' SDK does not ask for.
    assert again["at"] - first["at"] >= RETRY_DELAY_S - CLOCK_S


@scenario()
def f11_what_always_fails_becomes_a_dead_letter(cluster: Cluster, sdk: Commands) -> None:
    topic, group = cluster.topic(), cluster.group(retry_max_times=2)
    sdk.do("push", id="f", group=group, subscriptions={topic: ALL}, succeed_from=99)
    (body,) = send(sdk, topic, 1)
    delivered(sdk, "f", 3)
    assert dead_letters(cluster, sdk, group) == [body]
    assert [event["attempt"] for event in sdk.events("delivered", "f")] == [1, 2, 3]


# ---- order ----


@scenario({"groups": 1}, {"groups": 3})
def f12_messages_of_one_group_come_in_order(cluster: Cluster, sdk: Commands, groups: int) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group(consume_message_orderly=True)
    sdk.do("push", id="c", group=group, subscriptions={topic: ALL})
    sdk.do("producer", id="p", topics=[topic])
    for number in range(20):
        sdk.do("send", id="p", topic=topic, body=str(number), group=f"g{number % groups}")
    delivered(sdk, "c", 20)
    for name in range(groups):
        own = [
            int(event["body"])
            for event in sdk.events("delivered", "c")
            if event["group"] == f"g{name}"
        ]
        assert own == list(range(name, 20, groups))


@scenario()
def f12_a_failure_is_retried_in_its_place(cluster: Cluster, sdk: Commands) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group(consume_message_orderly=True)
    only = ["1", "3"]
    sdk.do("push", id="c", group=group, subscriptions={topic: ALL}, succeed_from=2, only=only)
    sdk.do("producer", id="p", topics=[topic])
    for number in range(5):
        sdk.do("send", id="p", topic=topic, body=str(number), group="g")
    assert bodies_of(delivered(sdk, "c", 7)) == ["0", "1", "1", "2", "3", "3", "4"]


@scenario()
def f13_a_message_that_is_given_up_lets_the_next_proceed(cluster: Cluster, sdk: Commands) -> None:
    topic, group = cluster.topic("FIFO"), cluster.group(consume_message_orderly=True)
    subscriptions = {topic: ALL}
    sdk.do("push", id="f", group=group, subscriptions=subscriptions, succeed_from=99, only=["bad"])
    sdk.do("producer", id="p", topics=[topic])
    for body in ("bad", "next"):
        sdk.do("send", id="p", topic=topic, body=body, group="g")
    until_sync(
        lambda: "next" in bodies_of(sdk.events("delivered", "f")), "the next", timeout_s=SOON_S
    )
    assert bodies_of(sdk.events("delivered", "f"))[:3] == ["bad"] * 3  # all its attempts
    assert dead_letters(cluster, sdk, group) == ["bad"]


@scenario()
def f15_a_time_more_than_a_day_ahead_is_refused(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("DELAY")
    sdk.do("producer", id="p", topics=[topic])
    with pytest.raises(SdkError, match="ahead"):
        sdk.do("send", id="p", topic=topic, body="x", deliver_at=int(time.time()) + 25 * 3_600)


# ---- priority ----


@scenario()
def f27_what_is_more_urgent_comes_first(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("PRIORITY", queues=10)
    sdk.do("producer", id="p", topics=[topic])
    priorities = [3, 1, 9, 5, 7, 2, 8, 6, 4]  # 0 is no priority to Node.js' SDK
    for priority in priorities:
        sdk.do("send", id="p", topic=topic, body=str(priority), priority=priority)
    simple(sdk, cluster.group(), topic)
    found = receive(sdk, 9, most=4)
    assert [message["priority"] for message in found] == sorted(priorities, reverse=True)
    assert bodies_of(found) == [str(message["priority"]) for message in found]
    with pytest.raises(SdkError):
        sdk.do("send", id="p", topic=topic, body="no priority")


# ---- who may call ----


Make = Callable[[tuple[str, str]], Sdk]


@scenario(credentials=True)
def f25_the_right_secret_passes(cluster: Cluster, make: Make) -> None:
    topic, group = cluster.topic(), cluster.group()
    with make(("app", SECRET)) as sdk:
        sdk.do("push", id="f", group=group, subscriptions={topic: ALL})
        sent = send(sdk, topic, 3)
        assert sorted(bodies_of(delivered(sdk, "f", 3))) == sorted(sent)
        simple(sdk, cluster.group(), topic)
        assert sorted(bodies_of(receive(sdk, 3))) == sorted(sent)


@scenario(
    *({"given": given} for given in (("app", "wrong-horse"), ("other", SECRET), ("", ""))),
    credentials=True,
)
def f25_another_secret_does_not(cluster: Cluster, make: Make, given: tuple[str, str]) -> None:
    """Node.js' SDK does not even start; Python's does, and can do nothing."""
    topic = cluster.topic()

    def consume(sdk: Sdk) -> None:
        simple(sdk, cluster.group(), topic)
        receive(sdk, 1)

    with make(given) as sdk:
        with pytest.raises(SdkError):
            send(sdk, topic, 1)
        with pytest.raises(SdkError):
            consume(sdk)


@scenario(credentials=True)
def f25_a_user_who_may_only_read_sends_nothing(cluster: Cluster, make: Make) -> None:
    topic = cluster.topic()
    with make(("app", SECRET)) as app, make(("reader", SECRET)) as reader:
        sent = send(app, topic, 1)
        simple(reader, cluster.group(), topic)
        assert bodies_of(receive(reader, 1)) == sent
        with pytest.raises(SdkError, match="lacks Pub on") as caught:
            send(reader, topic, 1)
        assert caught.value.code == UNAUTHORIZED


# ---- recall ----


@scenario()
def f16_a_recalled_message_does_not_come(cluster: Cluster, sdk: Commands) -> None:
    topic = cluster.topic("DELAY")
    simple(sdk, cluster.group(), topic)
    sdk.do("producer", id="p", topics=[topic])
    soon = int(time.time()) + 10
    sent = sdk.do("send", id="p", topic=topic, body="recalled", deliver_at=soon)
    sdk.do("send", id="p", topic=topic, body="later", deliver_at=soon + 1)
    recall = {"id": "p", "topic": topic, "handle": sent["recall_handle"]}
    assert sdk.do("recall", **recall) == sent["message_id"]
    with pytest.raises(SdkError, match="recalled before"):
        sdk.do("recall", **recall)
    (found,) = receive(sdk, 1)
    assert found["body"] == "later"
