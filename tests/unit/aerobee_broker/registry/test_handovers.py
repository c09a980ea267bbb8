"""Handovers of queues: who has a queue, until when, and who is notified then."""

from __future__ import annotations

import pytest

from aerobee_broker.registry.clients import Client, Clients
from aerobee_broker.registry.consumers import Consumer
from aerobee_broker.registry.handovers import Handovers
from support.clock.manual_clock import ManualClock


@pytest.fixture
def clients() -> Clients:
    clients = Clients(ManualClock(), timeout_ms=120_000, notifies=lambda _: True)
    for client_id in ("a", "b", "c"):
        clients.heartbeat(Client(client_id, consumers={"g": Consumer()}))
    return clients


@pytest.fixture
def handovers(clients: Clients) -> Handovers:
    return Handovers(clients)


def test_queue_is_held_until_its_member_releases_it(handovers: Handovers) -> None:
    assert handovers.take("g", "a", "t", [0, 1]) == {}
    assert handovers.take("g", "a", "t", [0, 1]) == {}, "it has them already"
    assert handovers.take("g", "b", "t", [0, 1, 2]) == {0: "a", 1: "a"}
    handovers.release("g", "b", [("t", 0)])
    assert handovers.take("g", "b", "t", [0]) == {0: "a"}, "only who has it releases it"
    handovers.release("g", "a", [("t", 0)])
    assert handovers.take("g", "b", "t", [0, 1]) == {1: "a"}
    assert handovers.take("g", "a", "t", [0]) == {0: "b"}


def test_queue_that_is_pulled_is_held(clients: Clients, handovers: Handovers) -> None:
    clients.note_pull("a", "g", "t", 0)
    assert handovers.take("g", "b", "t", [0]) == {0: "a"}
    assert handovers.take("g", "b", "other", [0]) == {}


def test_members_that_wait_are_notified_of_a_release(
    clients: Clients, handovers: Handovers
) -> None:
    watches = {client_id: clients.watch(client_id) for client_id in ("a", "b", "c")}
    handovers.take("g", "a", "t", [0, 1])
    handovers.take("g", "b", "t", [0])
    handovers.take("g", "c", "t", [1])
    handovers.release("g", "a", [("t", 0)])
    assert [client_id for client_id, watch in watches.items() if watch._groups] == ["b"]
    handovers.release("g", "a", [("t", 1)])
    assert [client_id for client_id, watch in watches.items() if watch._groups] == ["b", "c"]


def test_queue_of_a_member_that_left_is_free(clients: Clients, handovers: Handovers) -> None:
    handovers.take("g", "a", "t", [0])
    handovers.take("g", "b", "t", [0])
    clients.forget("a")
    assert handovers.take("g", "c", "t", [0]) == {}


def test_nothing_is_kept_of_members_that_left(clients: Clients, handovers: Handovers) -> None:
    handovers.take("g", "a", "t", [0])
    handovers.take("g", "b", "t", [0])
    clients.forget("b")
    assert not handovers._awaited


def test_client_that_is_not_a_member_neither_takes_nor_waits(handovers: Handovers) -> None:
    handovers.take("g", "a", "t", [0])
    assert handovers.take("g", "reader", "t", [0, 1]) == {}
    assert handovers.take("g", "b", "t", [1]) == {}
