"""Which client gets which lite topics: sets, models, quotas, silence."""

from __future__ import annotations

import random

import pytest

from aerobee_broker.delivery.lite.subscriptions import (
    QUOTA_SLACK,
    SILENCE_MS,
    Change,
    Subscriptions,
)
from aerobee_broker.store.lite.lite_queue import lite_code
from aerobee_wire.queues.lite import LiteGroup, Model
from aerobee_wire.status import Code
from support.codes import raises_code

SHARED = LiteGroup("parent")
EXCLUSIVE = LiteGroup("parent", "Exclusive")
WILDCARD = LiteGroup("parent", wildcard=True)


def code(name: str) -> int:
    return lite_code(name.encode())


def holders(subscriptions: Subscriptions, name: str, group: str = "g") -> list[str]:
    return list(subscriptions.holders(group, code(name)))


def reported(change: Change) -> list[tuple[str, str]]:
    return [(eviction.client.client_id, eviction.name) for eviction in change.evicted]


def names(subscriptions: Subscriptions, client_id: str, group: str = "g") -> set[str]:
    client = subscriptions.get(group, client_id)
    return set(client.names.values()) if client else set()


def test_a_lite_topic_may_have_several_holders_in_a_shared_group() -> None:
    subscriptions = Subscriptions()
    first = subscriptions.add("g", "c1", SHARED, ["a", "b"], 0)
    assert first.added == [code("a"), code("b")]
    assert subscriptions.add("g", "c1", SHARED, ["b", "c"], 1).added == [code("c")]
    assert reported(subscriptions.add("g", "c2", SHARED, ["b"], 2)) == []
    assert subscriptions.add("h", "c3", SHARED, ["b"], 2).added == [code("b")]
    assert holders(subscriptions, "b") == ["c1", "c2"]
    assert holders(subscriptions, "b", "h") == ["c3"]
    assert holders(subscriptions, "x") == []
    assert len(subscriptions) == 5
    assert sorted(subscriptions.groups_of("parent")) == ["g", "h"]
    assert subscriptions.groups_of("other") == []


def test_the_newest_holds_a_lite_topic_of_an_exclusive_group() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("g", "c1", EXCLUSIVE, ["a", "b"], 0)
    assert reported(subscriptions.add("g", "c2", EXCLUSIVE, ["a"], 1)) == [("c1", "a")]
    assert holders(subscriptions, "a") == ["c2"]
    assert names(subscriptions, "c1") == {"b"}


def test_nobody_evicts_itself() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("g", "c1", EXCLUSIVE, ["a"], 0)
    change = subscriptions.add("g", "c1", EXCLUSIVE, ["a"], 1)
    assert (reported(change), change.added) == ([], [])
    assert holders(subscriptions, "a") == ["c1"]


def test_a_client_that_missed_the_notice_is_notified_again_and_does_not_take_it_back() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("g", "c1", EXCLUSIVE, ["a", "b"], 0)
    subscriptions.add("g", "c2", EXCLUSIVE, ["a"], 1)
    for _ in range(2):
        change = subscriptions.replace("g", "c1", EXCLUSIVE, ["a", "b"], 2)
        assert reported(change) == [("c1", "a")]
        assert holders(subscriptions, "a") == ["c2"]
        assert names(subscriptions, "c1") == {"b"}
    subscriptions.leave("g", "c2")
    assert subscriptions.replace("g", "c1", EXCLUSIVE, ["a", "b"], 3).added == [code("a")]


def test_a_complete_set_adds_and_removes() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("g", "c1", SHARED, ["a", "b"], 0)
    change = subscriptions.replace("g", "c1", SHARED, ["b", "c"], 1)
    assert (change.added, change.removed) == ([code("c")], [code("a")])
    assert names(subscriptions, "c1") == {"b", "c"}
    assert subscriptions.replace("g", "c1", SHARED, [], 2).removed == [code("b"), code("c")]
    assert subscriptions.get("g", "c1") is not None  # it lives, and holds nothing


def test_unknown_names_may_be_given_up() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("g", "c1", SHARED, ["a", "b"], 0)
    change = subscriptions.remove("g", "c1", SHARED, ["b", "x", "b"], 1)
    assert change.removed == [code("b")]
    assert names(subscriptions, "c1") == {"a"}


@pytest.mark.parametrize("quota", [0, 3])
def test_the_quota_counts_what_a_client_holds(quota: int) -> None:
    settings = LiteGroup("parent", quota=quota)
    subscriptions = Subscriptions()
    held = [f"n{number}" for number in range(quota)]
    subscriptions.add("g", "c1", settings, held, 0)
    subscriptions.add("g", "c1", settings, held, 0)
    with raises_code(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED):
        subscriptions.add("g", "c1", settings, ["more"], 0)
    assert names(subscriptions, "c1") == set(held)
    subscriptions.replace("g", "c1", settings, map(str, range(quota + QUOTA_SLACK)), 0)
    with raises_code(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED):
        subscriptions.replace("g", "c1", settings, map(str, range(quota + QUOTA_SLACK + 1)), 0)
    assert len(subscriptions) == quota + QUOTA_SLACK


def test_a_group_without_quota() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("g", "c", LiteGroup("parent", quota=-1), map(str, range(5_000)), 0)
    assert len(subscriptions) == 5_000


def test_a_broker_has_a_limit_of_its_own() -> None:
    subscriptions = Subscriptions(limit=3)
    subscriptions.add("g", "c1", SHARED, ["a", "b"], 0)
    with raises_code(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED):
        subscriptions.add("g", "c2", SHARED, ["a", "b"], 0)
    assert subscriptions.get("g", "c2") is None
    subscriptions.replace("g", "c1", SHARED, ["c", "d", "b"], 0)
    assert len(subscriptions) == 3


def test_a_wildcard_group_gets_everything() -> None:
    subscriptions = Subscriptions()
    with raises_code(Code.ILLEGAL_OPERATION):
        subscriptions.add("g", "c1", WILDCARD, ["a"], 0)
    subscriptions.replace("g", "c1", WILDCARD, [], 0)
    subscriptions.replace("g", "c2", WILDCARD, [], 0)
    assert holders(subscriptions, "anything") == ["c1", "c2"]
    subscriptions.leave("g", "c1")
    assert holders(subscriptions, "anything") == ["c2"]


def test_what_a_client_held_elsewhere_comes_to_it_unless_another_has_taken_it_over() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("g", "c2", EXCLUSIVE, ["a"], 0)
    subscriptions.add("g", "c1", EXCLUSIVE, ["b"], 0)
    change = subscriptions.keep("g", "c1", EXCLUSIVE, ["a", "b", "c"], 1)
    assert (change.added, reported(change)) == ([code("c")], [("c1", "a")])
    assert names(subscriptions, "c1") == {"b", "c"}
    assert holders(subscriptions, "a") == ["c2"]
    assert subscriptions.keep("g", "c3", SHARED, ["a"], 1).added == [code("a")]
    with raises_code(Code.ILLEGAL_OPERATION):
        subscriptions.keep("g", "c1", WILDCARD, ["a"], 2)


def test_a_silent_client_is_gone() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("g", "c1", SHARED, ["a"], 0)
    subscriptions.add("g", "c2", SHARED, ["a"], 0)
    subscriptions.replace("g", "c2", SHARED, ["a"], 1)
    assert [client.client_id for client in subscriptions.expire(SILENCE_MS)] == ["c1"]
    assert holders(subscriptions, "a") == ["c2"]
    assert subscriptions.leave("g", "c1") is None


def test_a_deleted_group_and_one_of_another_parent() -> None:
    subscriptions = Subscriptions()
    subscriptions.add("g", "c1", SHARED, ["a"], 0)
    subscriptions.add("g", "c1", LiteGroup("other"), ["b"], 1)
    assert names(subscriptions, "c1") == {"b"}
    assert subscriptions.groups_of("parent") == []
    assert [client.client_id for client in subscriptions.forget_group("g")] == ["c1"]
    assert (len(subscriptions), list(subscriptions)) == (0, [])


@pytest.mark.parametrize("model", ["Shared", "Exclusive"])
@pytest.mark.parametrize("seed", range(10))
def test_holders_are_the_sets_of_the_clients(seed: int, model: Model) -> None:
    rng, subscriptions, settings = random.Random(seed), Subscriptions(), LiteGroup("p", model)
    topics = [f"n{number}" for number in range(8)]
    clients = ["c1", "c2", "c3"]
    for now_ms in range(300):
        client = rng.choice(clients)
        some = rng.sample(topics, rng.randrange(5))
        match rng.randrange(9):
            case 8:
                subscriptions.keep("g", client, settings, some, now_ms)
            case 0:
                subscriptions.leave("g", client)
            case 1 | 2:
                subscriptions.replace("g", client, settings, some, now_ms)
            case 3 | 4:
                subscriptions.remove("g", client, settings, some, now_ms)
            case _:
                subscriptions.add("g", client, settings, some, now_ms)
        pairs = {(name, each) for each in clients for name in names(subscriptions, each)}
        assert pairs == {(n, h) for n in topics for h in holders(subscriptions, n)}
        assert len(pairs) == len(subscriptions)
        if settings.exclusive:
            assert len({name for name, _ in pairs}) == len(pairs)
