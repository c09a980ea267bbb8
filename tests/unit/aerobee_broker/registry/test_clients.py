"""The client table: heartbeats, expiry, members, subscriptions and the notices about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.registry.clients import (
    CONFLICT_INTERVAL_MS,
    GATHERING_MS,
    UNWATCHED_MS,
    CheckNotice,
    Client,
    ClientFilter,
    Clients,
    Watch,
)
from aerobee_broker.registry.consumers import Consumer, ConsumeType, MessageModel, Subscription
from aerobee_wire.status import Code
from support.clock.manual_clock import ManualClock
from support.codes import raises_code


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def clients(clock: ManualClock) -> Clients:
    return Clients(clock, timeout_ms=120_000, notifies=lambda group: group != "quiet")


def consumer(
    expression: str = "*", version: int = 0, model: MessageModel = MessageModel.CLUSTERING
) -> Consumer:
    subscription = Subscription("t", compile_filter("TAG", expression), version)
    return Consumer(message_model=model, subscriptions={"t": subscription})


def client(name: str, *groups: str, **fields: object) -> Client:
    consumers = {group: consumer(**fields) for group in groups}  # type: ignore[arg-type]
    return Client(name, consumers=consumers)


async def pending(watch: Watch) -> list[str | CheckNotice]:
    """The pending notices."""
    try:
        async with asyncio.timeout(0):
            return await watch.next()
    except TimeoutError:
        return []


def test_every_member_sees_the_members_in_one_order(clients: Clients) -> None:
    for name in ("b", "c", "a"):
        clients.heartbeat(client(name, "g"))
    assert clients.members("g") == ["a", "b", "c"]
    assert clients.members("unknown") == []


def test_a_new_master_lists_no_members_before_all_could_register(
    clients: Clients, clock: ManualClock
) -> None:
    """Else whoever told first would take the queues of all others."""
    clients.heartbeat(client("a", "g"))
    assert clients.listed_members("g") == ["a"]
    clients.expect_all()
    with raises_code(Code.SERVICE_NOT_AVAILABLE):
        clients.listed_members("g")
    clock.advance(GATHERING_MS - 1)
    clients.heartbeat(client("b", "g"))
    with raises_code(Code.SERVICE_NOT_AVAILABLE):
        clients.listed_members("g")
    assert clients.members("g") == ["a", "b"], "the broker itself goes by those it knows"
    clock.advance(1)
    assert clients.listed_members("g") == ["a", "b"]


def test_a_silent_client_is_forgotten_after_the_timeout(
    clients: Clients, clock: ManualClock
) -> None:
    clients.heartbeat(client("silent", "g"))
    clock.advance(60_000)
    clients.heartbeat(client("alive", "g"))
    clock.advance(60_000)
    assert clients.scan() == []
    clock.advance(1)
    assert clients.scan() == ["silent"]
    assert clients.members("g") == ["alive"]


def test_a_client_that_ended_before_its_stream_opened_is_forgotten_soon(
    clients: Clients, clock: ManualClock
) -> None:
    """Such a member has queues that no other member consumes until it is forgotten."""
    clients.heartbeat(replace(client("killed", "g"), watches=True))
    clients.heartbeat(replace(client("alive", "g"), watches=True))
    clients.watch("alive")
    clock.advance(UNWATCHED_MS)
    assert clients.scan() == []
    clock.advance(1)
    assert clients.scan() == ["killed"]
    assert clients.members("g") == ["alive"]


def test_a_heartbeat_that_is_handled_after_the_end_of_the_stream_counts_shortly(
    clients: Clients, clock: ManualClock
) -> None:
    killed = replace(client("killed", "g"), watches=True)
    clients.heartbeat(killed)
    watch = clients.watch("killed")
    clients.end_watch(watch)
    clients.heartbeat(killed)
    clock.advance(UNWATCHED_MS + 1)
    assert clients.scan() == ["killed"]


def test_a_client_whose_stream_fails_again_and_again_stays_a_member(
    clients: Clients, clock: ManualClock
) -> None:
    for _ in range(20):
        clients.heartbeat(replace(client("c", "g"), watches=True))
        clock.advance(UNWATCHED_MS // 2)
        assert clients.scan() == []


def test_a_producer_behind_a_proxy_is_live_and_takes_nobody_s_place(
    clients: Clients, clock: ManualClock
) -> None:
    producer = Client("p", proxy="host:8081", published_topics=frozenset({"t"}))
    clients.heartbeat(producer)
    began_ms = clock.now_ms()
    clock.advance(10_000)
    clients.heartbeat(producer)
    (found,) = clients.all()
    assert (found.since_timestamp_ms, found.last_update_timestamp_ms) == (
        began_ms,
        began_ms + 10_000,
    )
    clients.heartbeat(client("c", "g"))
    clients.heartbeat(Client("c", published_topics=frozenset({"t"})))
    clients.unregister("c", publishing=True)
    assert clients.members("g") == ["c"]
    clients.unregister("p", publishing=True)
    assert [each.client_id for each in clients.all()] == ["c"]


def test_classic_client_that_consumes_and_publishes_is_updated(clients: Clients) -> None:
    clients.heartbeat(client("c", "g"))
    both = replace(client("c", "g"), published_topics=frozenset({"t"}))
    clients.heartbeat(both)
    (found,) = clients.all()
    assert (found.published_topics, clients.members("g")) == (frozenset({"t"}), ["c"])


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "abc"),
        ({"group": "g"}, "b"),
        ({"group": "shop"}, "c"),
        ({"topic": "t"}, "ab"),
        ({"user": "billing"}, "a"),
        ({"proxy": "host:8081"}, "a"),
        ({"text": "GO 5.1"}, "a"),
        ({"text": "10.0.0.7"}, "c"),
        ({"text": "5.1", "group": "g"}, ""),
    ],
)
def test_filter_chooses_clients(clients: Clients, wanted: dict[str, str], found: str) -> None:
    clients.heartbeat(
        Client(
            "a",
            proxy="host:8081",
            user="billing",
            language="go",
            version="5.1.4",
            published_topics=frozenset({"t"}),
        )
    )
    clients.heartbeat(client("b", "g"))
    clients.heartbeat(Client("c", address="10.0.0.7:4711", producer_groups=frozenset({"shop"})))
    chosen = ClientFilter(**wanted)
    assert "".join(each.client_id for each in clients.all() if chosen.matches(each)) == found


def test_setting_the_time_of_day_expires_no_client(clients: Clients, clock: ManualClock) -> None:
    clients.heartbeat(client("a", "g"))
    clock.jump(3_600_000)
    assert clients.scan() == []


async def test_members_are_notified_when_one_joins_or_leaves(clients: Clients) -> None:
    watch = clients.watch("a")
    clients.heartbeat(client("a", "g"))
    assert await pending(watch) == ["g"]
    clients.heartbeat(client("a", "g"))
    assert await pending(watch) == [], "nothing changed"
    clients.heartbeat(client("b", "g", "h"))
    assert await pending(watch) == ["g"], "h is none of its groups"
    clients.unregister("b", producer_group="", consumer_group="g")
    assert await pending(watch) == ["g"]
    assert clients.members("h") == ["b"]


async def test_pending_notices_of_one_group_are_one(clients: Clients) -> None:
    watch = clients.watch("a")
    clients.heartbeat(client("a", "g", "h"))
    for name in "bcd":
        clients.heartbeat(client(name, "g"))
    assert await pending(watch) == ["g", "h"]
    assert await pending(watch) == []


async def test_members_are_notified_of_a_changed_subscription(clients: Clients) -> None:
    watch = clients.watch("a")
    clients.heartbeat(client("a", "g"))
    await pending(watch)
    clients.heartbeat(client("a", "g", expression="x"))
    assert await pending(watch) == ["g"]


async def test_no_notices_for_broadcasting_or_switched_off_groups(clients: Clients) -> None:
    watch = clients.watch("a")
    clients.heartbeat(client("a", "quiet"))
    clients.heartbeat(client("a", "broadcast", model=MessageModel.BROADCASTING))
    assert await pending(watch) == []


def test_the_end_of_its_stream_forgets_the_client(clients: Clients) -> None:
    watch = clients.watch("a")
    clients.heartbeat(client("a", "g"))
    clients.end_watch(watch)
    assert clients.members("g") == [] and clients.all() == []


async def test_the_end_of_an_earlier_stream_forgets_nobody(clients: Clients) -> None:
    old = clients.watch("a")
    clients.heartbeat(client("a", "g"))
    new = clients.watch("a")
    assert await old.next() == [], "the old watch is over"
    clients.end_watch(old)
    assert clients.members("g") == ["a"]
    clients.heartbeat(client("b", "g"))
    assert await pending(new) == ["g"]


def test_the_newest_subscription_of_a_group_counts(clients: Clients) -> None:
    clients.heartbeat(client("a", "g", expression="new", version=2))
    clients.heartbeat(client("b", "g", expression="old", version=1))
    subscriptions = clients.subscriptions("g")
    assert subscriptions is not None
    assert subscriptions["t"].filter.expression == "new"
    clients.forget("a")
    assert (clients.subscriptions("g") or {})["t"].filter.expression == "old"
    clients.forget("b")
    assert clients.subscriptions("g") is None


@pytest.mark.parametrize(
    ("unregister", "left"),
    [
        (lambda c: c.unregister("a", producer_group="", consumer_group=""), []),
        (lambda c: c.unregister("a", producer_group="p", consumer_group=""), ["a"]),
        (lambda c: c.unregister("a", producer_group="p", consumer_group="g"), []),
        (lambda c: c.unregister("unknown", producer_group="", consumer_group=""), ["a"]),
    ],
)
def test_unregistering_forgets_what_it_names(
    clients: Clients, unregister: Callable[[Clients], None], left: list[str]
) -> None:
    clients.heartbeat(Client("a", producer_groups=frozenset({"p"}), consumers={"g": consumer()}))
    unregister(clients)
    assert [client.client_id for client in clients.all()] == left


def test_a_queue_belongs_to_the_member_with_the_last_pull(
    clients: Clients, clock: ManualClock
) -> None:
    clients.heartbeat(client("a", "g", "h"))
    clients.heartbeat(client("b", "g"))
    clients.note_pull("a", "g", "t", 0)
    clients.note_pull("a", "g", "t", 1)
    clients.note_pull("a", "h", "t", 0)
    clock.advance(1)
    clients.note_pull("b", "g", "t", 1)
    clients.note_pull("stranger", "g", "t", 2)
    clients.heartbeat(client("b", "g"))  # forgets nothing
    assert clients.owners("g") == {("t", 0): "a", ("t", 1): "b"}
    clients.forget("b")
    assert clients.owners("g") == {("t", 0): "a", ("t", 1): "a"}
    clients.forget("a")
    assert clients.owners("g") == {}


def subscribing(name: str, **topics: str) -> Client:
    """A member of group g."""
    subscriptions = {
        topic: Subscription(topic, compile_filter("TAG", text)) for topic, text in topics.items()
    }
    return Client(name, consumers={"g": Consumer(subscriptions=subscriptions)})


def test_members_that_subscribe_differently_are_reported(clock: ManualClock) -> None:
    reported: list[tuple[str, dict[str, list[str]]]] = []
    clients = Clients(
        clock,
        timeout_ms=120_000,
        notifies=lambda _: False,
        on_conflict=lambda group, found: reported.append((group, dict(found.subscriptions))),
    )
    clients.heartbeat(subscribing("a", t="x || y", u="*"))
    clients.heartbeat(subscribing("silent"))
    clients.heartbeat(subscribing("started", **{"%RETRY%g": "*"}))  # and has not subscribed yet
    clients.heartbeat(subscribing("b", t="y||x", u="", **{"%RETRY%g": "*"}))
    assert not reported, "the same, written in another way"
    clients.heartbeat(subscribing("b", t="y", u="*"))
    clients.heartbeat(subscribing("b", t="z", u="*"))  # within the interval
    clock.advance(CONFLICT_INTERVAL_MS)
    clients.heartbeat(subscribing("b", t="y", u="*"))
    clock.advance(CONFLICT_INTERVAL_MS)
    clients.heartbeat(subscribing("c", t="y"))
    assert reported == [
        ("g", {"t": ["x||y", "y"]}),
        ("g", {"t": ["x||y", "y"]}),
        ("g", {"t": ["x||y", "y"], "u": ["", "*"]}),
    ]
    for name in "abc":
        clients.forget(name)
    clients.forget("silent")
    clients.forget("started")
    clients.heartbeat(subscribing("a", t="x"))
    clients.heartbeat(subscribing("b", t="y"))
    assert reported[-1] == ("g", {"t": ["x", "y"]}), "at once: the group was empty meanwhile"


def test_members_that_consume_differently_are_reported(clock: ManualClock) -> None:
    reported: list[dict[str, list[str]]] = []
    clients = Clients(
        clock,
        timeout_ms=120_000,
        notifies=lambda _: False,
        on_conflict=lambda _, found: reported.append(dict(found.settings)),
    )

    def join(name: str, consumer: Consumer) -> None:
        clock.advance(CONFLICT_INTERVAL_MS)
        clients.heartbeat(Client(name, consumers={"g": consumer}))

    join("a", Consumer(strategy="AVG"))
    join("older", Consumer())
    join("b", Consumer(ConsumeType.PULL, strategy="AVG"))
    assert not reported, "who pulls and who is pushed share alike; an older one names no strategy"
    join("b", Consumer(strategy="CONSISTENT_HASH"))
    join("c", Consumer(ConsumeType.POP))
    clients.forget("c")
    join("b", Consumer(message_model=MessageModel.BROADCASTING, strategy="AVG_BY_CIRCLE"))
    assert reported == [
        {"strategy": ["AVG", "CONSISTENT_HASH"]},
        {"strategy": ["AVG", "CONSISTENT_HASH"], "way to consume": ["pop", "pull"]},
        {"message model": ["BROADCASTING", "CLUSTERING"]},
    ]


async def test_statistics_are_kept_and_change_nothing(clients: Clients) -> None:
    """Members are not notified because another one counts on."""
    clients.heartbeat(Client("a", consumers={"g": Consumer(statistics={"consumed": 1})}))
    watch = clients.watch("a")
    clients.heartbeat(Client("a", consumers={"g": Consumer(statistics={"consumed": 2})}))
    assert not watch._pending.is_set()
    assert clients.consumers("g")[0].statistics == {"consumed": 2}


def test_a_client_is_shown_with_the_queues_that_it_pulled_last(
    clients: Clients, clock: ManualClock
) -> None:
    everything = Consumer(message_model=MessageModel.BROADCASTING)
    for name in ("a", "b"):
        clients.heartbeat(Client(name, consumers={"g": Consumer(), "all": everything}))
    for name, queue_id in (("a", 0), ("a", 1), ("b", 1)):
        clock.advance(1)
        clients.note_pull(name, "g", "t", queue_id)
        clients.note_pull(name, "all", "t", queue_id)
    first, second = clients.all()
    assert clients.queues_of(first) == [("all", "t", 0), ("all", "t", 1), ("g", "t", 0)]
    assert clients.queues_of(second) == [("all", "t", 1), ("g", "t", 1)]


def test_a_popping_consumer_keeps_its_subscriptions(clients: Clients) -> None:
    """A heartbeat of a proxy that does not know them names none."""
    subscription = Subscription("t", compile_filter("TAG", "x"))
    knowing = Consumer(ConsumeType.POP, subscriptions={"t": subscription})
    clients.heartbeat(Client("a", consumers={"g": knowing}))
    clients.heartbeat(Client("a", consumers={"g": Consumer(ConsumeType.POP)}))
    assert clients.subscriptions("g") == {"t": subscription}
    clients.heartbeat(Client("a", consumers={"g": Consumer(ConsumeType.PUSH)}))
    assert not clients.subscriptions("g"), "one that pulls always names its own"
