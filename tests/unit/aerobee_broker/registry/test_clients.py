"""The client table: heartbeats, expiry, members, subscriptions and the notices about them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.registry.clients import (
    TELL_AGAIN_MS,
    CheckNotice,
    Client,
    Clients,
    Consumer,
    ConsumeType,
    MessageModel,
    Subscription,
    Watch,
)
from support.clock.manual_clock import ManualClock


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


async def told(watch: Watch) -> list[str | CheckNotice]:
    """The notices that wait; empty when there are none."""
    try:
        async with asyncio.timeout(0):
            return await watch.next()
    except TimeoutError:
        return []


def test_members_are_sorted_so_that_all_see_one_order(clients: Clients) -> None:
    for name in ("b", "c", "a"):
        clients.heartbeat(client(name, "g"))
    assert clients.members("g") == ["a", "b", "c"]
    assert clients.members("unknown") == []


def test_silence_is_forgotten_after_the_timeout_and_not_before(
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


def test_setting_the_time_of_day_forgets_nobody(clients: Clients, clock: ManualClock) -> None:
    clients.heartbeat(client("a", "g"))
    clock.jump(3_600_000)
    assert clients.scan() == []


async def test_joining_and_leaving_is_told_to_the_members(clients: Clients) -> None:
    watch = clients.watch("a")
    clients.heartbeat(client("a", "g"))
    assert await told(watch) == ["g"]
    clients.heartbeat(client("a", "g"))
    assert await told(watch) == [], "nothing changed"
    clients.heartbeat(client("b", "g", "h"))
    assert await told(watch) == ["g"], "h is none of its groups"
    clients.unregister("b", producer_group="", consumer_group="g")
    assert await told(watch) == ["g"]
    assert clients.members("h") == ["b"]


async def test_notices_of_one_group_are_joined(clients: Clients) -> None:
    watch = clients.watch("a")
    clients.heartbeat(client("a", "g", "h"))
    for name in "bcd":
        clients.heartbeat(client(name, "g"))
    assert await told(watch) == ["g", "h"]
    assert await told(watch) == []


async def test_a_changed_subscription_is_told(clients: Clients) -> None:
    watch = clients.watch("a")
    clients.heartbeat(client("a", "g"))
    await told(watch)
    clients.heartbeat(client("a", "g", expression="x"))
    assert await told(watch) == ["g"]


async def test_groups_that_want_no_notices_get_none(clients: Clients) -> None:
    watch = clients.watch("a")
    clients.heartbeat(client("a", "quiet"))
    clients.heartbeat(client("a", "broadcast", model=MessageModel.BROADCASTING))
    assert await told(watch) == []


def test_the_end_of_the_stream_is_the_end_of_the_client(clients: Clients) -> None:
    watch = clients.watch("a")
    clients.heartbeat(client("a", "g"))
    clients.watch_ended(watch)
    assert clients.members("g") == [] and clients.all() == []


async def test_a_client_that_came_back_survives_the_end_of_its_old_stream(
    clients: Clients,
) -> None:
    old = clients.watch("a")
    clients.heartbeat(client("a", "g"))
    new = clients.watch("a")
    assert await old.next() == [], "the old watch is over"
    clients.watch_ended(old)
    assert clients.members("g") == ["a"]
    clients.heartbeat(client("b", "g"))
    assert await told(new) == ["g"]


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
    assert [one.client_id for one in clients.all()] == left


def test_a_queue_belongs_to_the_member_that_pulled_from_it_last(
    clients: Clients, clock: ManualClock
) -> None:
    clients.heartbeat(client("a", "g", "h"))
    clients.heartbeat(client("b", "g"))
    clients.pulls("a", "g", "t", 0)
    clients.pulls("a", "g", "t", 1)
    clients.pulls("a", "h", "t", 0)
    clock.advance(1)
    clients.pulls("b", "g", "t", 1)
    clients.pulls("stranger", "g", "t", 2)
    clients.heartbeat(client("b", "g"))  # forgets nothing
    assert clients.owners("g") == {("t", 0): "a", ("t", 1): "b"}
    clients.forget("b")
    assert clients.owners("g") == {("t", 0): "a", ("t", 1): "a"}
    clients.forget("a")
    assert clients.owners("g") == {}


def subscribing(name: str, **topics: str) -> Client:
    """A member of group g."""
    wanted = {
        topic: Subscription(topic, compile_filter("TAG", text)) for topic, text in topics.items()
    }
    return Client(name, consumers={"g": Consumer(subscriptions=wanted)})


def test_members_that_subscribe_differently_are_told_of_now_and_then(clock: ManualClock) -> None:
    heard: list[tuple[str, dict[str, list[str]]]] = []
    clients = Clients(
        clock,
        timeout_ms=120_000,
        notifies=lambda _: False,
        on_conflict=lambda group, found: heard.append((group, dict(found))),
    )
    clients.heartbeat(subscribing("a", t="x || y", u="*"))
    clients.heartbeat(subscribing("silent"))
    clients.heartbeat(subscribing("b", t="y||x", u="", **{"%RETRY%g": "*"}))
    assert not heard, "the same, written in another way"
    clients.heartbeat(subscribing("b", t="y", u="*"))
    clients.heartbeat(subscribing("b", t="z", u="*"))  # too soon to be told again
    clock.advance(TELL_AGAIN_MS)
    clients.heartbeat(subscribing("b", t="y", u="*"))
    clock.advance(TELL_AGAIN_MS)
    clients.heartbeat(subscribing("c", t="y"))
    assert heard == [
        ("g", {"t": ["x||y", "y"]}),
        ("g", {"t": ["x||y", "y"]}),
        ("g", {"t": ["x||y", "y"], "u": ["", "*"]}),
    ]
    for name in "abc":
        clients.forget(name)
    clients.forget("silent")
    clients.heartbeat(subscribing("a", t="x"))
    clients.heartbeat(subscribing("b", t="y"))
    assert heard[-1] == ("g", {"t": ["x", "y"]}), "told anew once the group was empty"


def test_a_consumer_that_pops_keeps_its_subscriptions_when_a_proxy_does_not_know_them(
    clients: Clients,
) -> None:
    subscription = Subscription("t", compile_filter("TAG", "x"))
    knowing = Consumer(ConsumeType.POP, subscriptions={"t": subscription})
    clients.heartbeat(Client("a", consumers={"g": knowing}))
    clients.heartbeat(Client("a", consumers={"g": Consumer(ConsumeType.POP)}))
    assert clients.subscriptions("g") == {"t": subscription}
    clients.heartbeat(Client("a", consumers={"g": Consumer(ConsumeType.PUSH)}))
    assert not clients.subscriptions("g"), "who pulls says what it wants"
