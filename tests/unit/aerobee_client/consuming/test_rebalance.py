"""Strategies: the shares are disjoint and cover every queue; formulas as in RocketMQ's client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_client import rebalance
from aerobee_client.message_queue import MessageQueue
from aerobee_client.rebalance import Strategy

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


COVERING = {
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
