"""Strategies: the shares are disjoint and cover every queue; formulas as in RocketMQ's client."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_client import rebalance
from aerobee_client.cluster.client_instance import new_client_id
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import ConsumerOptions
from aerobee_client.rebalance import Strategy
from aerobee_wire.status import MqError
from support.codes import raises_about

ROOMS = ("east", "west")


def queues_of(*broker_names: str, count: int = 4) -> list[MessageQueue]:
    return sorted(MessageQueue("t", name, n) for name in broker_names for n in range(count))


QUEUES = st.lists(
    st.builds(
        MessageQueue,
        st.just("t"),
        st.sampled_from(["east@a", "east@b", "west@c"]),
        st.integers(0, 20),
    ),
    unique=True,
    min_size=1,
).map(sorted)
CLIENTS = st.lists(
    st.builds(lambda room, n: f"{room}-{n}", st.sampled_from(ROOMS), st.integers(0, 99)),
    unique=True,
    min_size=1,
    max_size=12,
).map(sorted)


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client_id: str) -> str:
    return client_id.partition("-")[0]


COVERING: dict[str, Strategy] = {
    "average": rebalance.average,
    "average_by_circle": rebalance.average_by_circle,
    "consistent_hash": rebalance.consistent_hash(),
    "machine_room": rebalance.machine_room(ROOMS),
    "machine_room_nearby": rebalance.machine_room_nearby(
        rebalance.average, room_of_queue, room_of_client
    ),
}


@pytest.mark.parametrize("name", COVERING)
@given(queues=QUEUES, clients=CLIENTS)
def test_shares_are_disjoint_and_cover_every_queue(
    name: str, queues: list[MessageQueue], clients: list[str]
) -> None:
    strategy = COVERING[name]
    shares = [strategy(client, queues, clients) for client in clients]
    assert sorted(queue for share in shares for queue in share) == queues


@pytest.mark.parametrize("strategy", [rebalance.average, rebalance.average_by_circle])
@given(queues=QUEUES, clients=CLIENTS)
def test_counting_strategies_differ_by_at_most_one(
    strategy: Strategy, queues: list[MessageQueue], clients: list[str]
) -> None:
    sizes = [len(strategy(client, queues, clients)) for client in clients]
    assert max(sizes) - min(sizes) <= 1


@given(queues=QUEUES, clients=CLIENTS)
def test_average_is_rocketmqs_formula(queues: list[MessageQueue], clients: list[str]) -> None:
    m, c = len(queues), len(clients)
    mod = m % c
    for i, client in enumerate(clients):
        first_members = mod > 0 and i < mod
        size = 1 if m <= c else (m // c + 1 if first_members else m // c)
        start = i * size if first_members else i * size + mod
        expected = queues[start : start + max(min(size, m - start), 0)]
        assert rebalance.average(client, queues, clients) == expected


@given(queues=QUEUES, clients=CLIENTS)
def test_average_by_circle_is_rocketmqs_formula(
    queues: list[MessageQueue], clients: list[str]
) -> None:
    for i, client in enumerate(clients):
        expected = [queue for k, queue in enumerate(queues) if k >= i and k % len(clients) == i]
        assert rebalance.average_by_circle(client, queues, clients) == expected


@given(queues=QUEUES, clients=CLIENTS, rooms=st.sets(st.sampled_from(ROOMS)))
def test_machine_room_is_rocketmqs_formula(
    queues: list[MessageQueue], clients: list[str], rooms: set[str]
) -> None:
    near = [queue for queue in queues if queue.broker_name.split("@")[0] in rooms]
    c, (q, r) = len(clients), divmod(len(near), len(clients))
    for i, client in enumerate(clients):
        expected = near[i * q : i * q + q] + ([near[i + c * q]] if i < r else [])
        assert rebalance.machine_room(rooms)(client, queues, clients) == expected


@given(queues=QUEUES, clients=CLIENTS)
def test_nearby_is_rocketmqs_rule(queues: list[MessageQueue], clients: list[str]) -> None:
    """Room by room: shared in it by the inner strategy, or by all when nobody is there."""
    strategy = rebalance.machine_room_nearby(
        rebalance.average_by_circle, room_of_queue, room_of_client
    )
    for client in clients:
        expected: list[MessageQueue] = []
        for room in ROOMS:
            there = [queue for queue in queues if room_of_queue(queue) == room]
            near = [member for member in clients if room_of_client(member) == room]
            if client in near or not near:
                expected += rebalance.average_by_circle(client, there, near or clients)
        assert sorted(strategy(client, queues, clients)) == sorted(expected)


@given(queues=QUEUES, clients=CLIENTS)
def test_consistent_hash_is_rocketmqs_rule(queues: list[MessageQueue], clients: list[str]) -> None:
    """Each queue belongs to the virtual node that is at its place, or the next one up the ring."""

    def place(text: str) -> int:
        digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
        return digest[0] << 24 | digest[1] << 16 | digest[2] << 8 | digest[3]

    nodes = {place(f"{client}-{n}"): client for client in clients for n in range(10)}
    for queue in queues:
        at = place(
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
        )
        owner = nodes[min((node for node in nodes if node >= at), default=min(nodes))]
        assert rebalance.consistent_hash()(owner, [queue], clients) == [queue]


# ---- names ----

NAMES: dict[str, Strategy] = {
    "AVG": rebalance.average,
    "AVG_BY_CIRCLE": rebalance.average_by_circle,
    "CONSISTENT_HASH": rebalance.consistent_hash(),
    "CONFIG": rebalance.config([]),
    "MACHINE_ROOM": rebalance.machine_room({"east"}),
    "MACHINE_ROOM_NEARBY-AVG": rebalance.machine_room_nearby(),
    "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE": rebalance.machine_room_nearby(rebalance.average_by_circle),
}


def test_strategies_have_rocketmqs_names() -> None:
    assert {name: rebalance.name_of(strategy) for name, strategy in NAMES.items()} == {
        name: name for name in NAMES
    }
    assert rebalance.name_of(lambda _, queues, __: list(queues)).endswith("<lambda>")


@pytest.mark.parametrize("name", [*NAMES, "MACHINE_ROOM_NEARBY"])
def test_a_strategy_may_be_given_by_its_name(name: str) -> None:
    if name == "CONFIG":
        with raises_about(MqError, "strategy"):
            ConsumerOptions(strategy=name, machine_room="east")
        return
    found = ConsumerOptions(strategy=name, machine_room="east").allocation()
    expected = NAMES.get(name, NAMES["MACHINE_ROOM_NEARBY-AVG"])
    queues = queues_of("east@a", "west@b", "north@c", count=3)
    clients = ["10.0.0.1@1#1@east", "10.0.0.2@1#1@west", "10.0.0.3@1#1"]
    for client in clients:
        assert found(client, queues, clients) == expected(client, queues, clients)


@pytest.mark.parametrize(
    ("wrong", "about"),
    [
        ({"strategy": "AVERAGE"}, "strategy"),
        ({"strategy": "MACHINE_ROOM"}, "strategy"),
        ({"strategy": "MACHINE_ROOM_NEARBY"}, "strategy"),
        ({"strategy": "MACHINE_ROOM_NEARBY-CONFIG", "machine_room": "east"}, "strategy"),
        ({"machine_room": "ea@st"}, "machine_room"),
        ({"machine_room": "ö"}, "machine_room"),
    ],
)
def test_names_that_cannot_be_used_are_refused(wrong: dict[str, Any], about: str) -> None:
    with raises_about(MqError, about):
        ConsumerOptions(**wrong)


def test_the_room_of_a_member_is_in_its_client_id() -> None:
    nearby = rebalance.machine_room_nearby()
    queues = queues_of("east@a", "west@b", count=2)
    east, west = new_client_id("east"), new_client_id("west")
    assert nearby(east, queues, sorted([east, west])) == queues[:2]
    assert nearby(west, queues, sorted([east, west])) == queues[2:]


def test_average_gives_runs_and_circle_gives_turns() -> None:
    queues = queues_of("a", count=5)
    assert rebalance.average("c1", queues, ["c1", "c2"]) == queues[:3]
    assert rebalance.average_by_circle("c1", queues, ["c1", "c2"]) == queues[::2]


def test_config_ignores_the_other_members() -> None:
    queues = queues_of("a")
    strategy = rebalance.config([queues[2], MessageQueue("other", "a", 0)])
    assert strategy("c1", queues, ["c1", "c2"]) == [queues[2]]


def test_machine_room_leaves_out_other_rooms() -> None:
    queues = queues_of("east@a", "west@b", count=3)
    strategy = rebalance.machine_room({"east"})
    assert strategy("c1", queues, ["c1", "c2"]) == [queues[0], queues[2]]
    assert strategy("c2", queues, ["c1", "c2"]) == [queues[1]]


def test_nearby_shares_rooms_without_members_among_all() -> None:
    queues = queues_of("east@a", "west@b", "north@c", count=2)
    strategy = rebalance.machine_room_nearby(rebalance.average, room_of_queue, room_of_client)
    clients = ["east-1", "west-1"]
    assert {room_of_queue(q) for q in strategy("east-1", queues, clients)} == {"east", "north"}
    assert {room_of_queue(q) for q in strategy("west-1", queues, clients)} == {"west", "north"}


@given(queues=QUEUES, clients=CLIENTS.filter(lambda clients: len(clients) > 1))
def test_consistent_hash_moves_only_the_queues_of_a_leaver(
    queues: list[MessageQueue], clients: list[str]
) -> None:
    strategy = rebalance.consistent_hash()
    _, *rest = clients
    for client in rest:
        before = set(strategy(client, queues, clients))
        after = set(strategy(client, queues, rest))
        assert before <= after
    assert rest


def test_consistent_hash_uses_the_md5_of_rocketmqs_text() -> None:
    """One of 8 queues belongs to c1, by a ring of MD5 prefixes that was computed separately."""
    queues = queues_of("a", count=8)
    mine = rebalance.consistent_hash()("c1", queues, ["c1", "c2"])
    assert [queue.queue_id for queue in mine] == [4]
