"""Policies: which of them decides, and mistakes in them."""

from __future__ import annotations

import json
import shlex
import tracemalloc
from typing import Any

import pytest

from aerobee_wire.access.policies import (
    PUB,
    Need,
    Policy,
    allowed,
    deciding,
    policies_of,
    topic_need,
)
from aerobee_wire.access.users import User, parse_users
from aerobee_wire.status import MqError


def policy(
    resource: str, *actions: str, decision: str = "ALLOW", kind: str = "CUSTOM", **more: Any
) -> list[Policy]:
    entry = {"resource": resource, "actions": [*actions] or ["All"]}
    return policies_of({**entry, "decision": decision, "policyType": kind, **more})


@pytest.mark.parametrize(
    ("policies", "answer"),
    [
        ([], False),
        (policy("*"), True),
        (policy("Topic:*"), True),
        (policy("Topic:orders"), True),
        (policy("Topic:ord*"), True),
        (policy("Topic:orders*"), True),
        (policy("Topic:orders", "Any"), True),
        (policy("Topic:order"), False),
        (policy("Topic:orders2*"), False),
        (policy("Group:orders"), False),
        (policy("Topic:orders", "Sub"), False),
        (policy("Topic:orders", "Sub", "Pub"), True),
        # The most specific name decides, in any order.
        (policy("*") + policy("Topic:orders", decision="DENY"), False),
        (policy("Topic:orders") + policy("*", decision="DENY"), True),
        (policy("Topic:ord*", decision="DENY") + policy("Topic:orders"), True),
        (policy("Topic:o*") + policy("Topic:orde*", decision="DENY"), False),
        (policy("Topic:orders*", decision="DENY") + policy("Topic:orders"), True),
        (policy("Topic:*", decision="DENY") + policy("*"), False),
        # Among equals a denial.
        (policy("Topic:orders", decision="DENY") + policy("Topic:orders"), False),
        (policy("Topic:orders") + policy("Topic:orders", decision="DENY"), False),
        # A policy counts for its own actions only.
        (policy("Topic:orders", "Sub", decision="DENY") + policy("*"), True),
        # DEFAULT counts only where no CUSTOM matches.
        (policy("*", decision="DENY") + policy("Topic:orders", kind="DEFAULT"), False),
        (policy("Topic:other", decision="DENY") + policy("*", kind="DEFAULT"), True),
    ],
)
def test_policy_precedence(policies: list[Policy], answer: bool) -> None:
    assert allowed(policies, Need("Topic", "orders", ("Pub",))) is answer


def test_one_of_the_actions_is_enough() -> None:
    need = Need("Topic", "orders", ("Pub", "Sub"))
    assert allowed(policy("Topic:orders", "Sub"), need)
    assert str(need) == "Pub or Sub on Topic:orders"


@pytest.mark.parametrize(
    ("entry", "about"),
    [
        (1, ""),
        ({"resource": "*", "actions": "All", "sourceIps": []}, ".sourceIps"),
        ({"actions": ["All"]}, ".resource"),
        ({"resource": [], "actions": ["All"]}, ".resource"),
        ({"resource": "*"}, ".actions"),
        ({"resource": "*", "actions": ["pub"]}, ".actions"),
        ({"resource": "orders", "actions": "Pub"}, ".resource"),
        ({"resource": "Topic:", "actions": "Pub"}, ".resource"),
        ({"resource": "Topic:a*b", "actions": "Pub"}, ".resource"),
        ({"resource": "Queue:*", "actions": "Pub"}, ".resource"),
        ({"resource": "*", "actions": "All", "sourceIps": ["10.0.0.1/8"]}, ".sourceIps"),
        ({"resource": "*", "actions": "All", "sourceIps": ["localhost"]}, ".sourceIps"),
        ({"resource": "*", "actions": "All", "decision": "MAYBE"}, ".decision"),
        ({"resource": "*", "actions": "All", "decision": ["ALLOW"]}, ".decision"),
        ({"resource": "*", "actions": "All", "policyType": "MINE"}, ".policyType"),
    ],
)
def test_bad_policy_is_refused(entry: Any, about: str) -> None:
    user = {
        "username": "app",
        "password": "p@ss",
        "policies": [{"resource": "*", "actions": "All"}, entry],
    }
    with pytest.raises(MqError) as caught:
        parse_users(json.dumps({"users": [user]}), "users.json")
    assert caught.value.about == f"users[0].policies[1]{about}"
    assert "p@ss" not in str(caught.value)


@pytest.mark.parametrize(
    ("policies", "need", "answer"),
    [
        (policy("Namespace:shop"), Need("Topic", "shop%orders", ("Pub",)), True),
        (policy("Namespace:shop"), Need("Group", "shop%billing", ("Sub",)), True),
        (policy("Namespace:shop"), Need("Topic", "%RETRY%shop%billing", ("Sub",)), True),
        (policy("Namespace:shop"), Need("Namespace", "shop", ("Get",)), True),
        (policy("Namespace:shop"), Need("Topic", "shopping%orders", ("Pub",)), False),
        (policy("Namespace:sh*"), Need("Topic", "shop%orders", ("Pub",)), True),
        (policy("Namespace:*"), Need("Topic", "orders", ("Pub",)), False),
        (policy("Cluster:*"), Need("Cluster", "prod", ("Update",)), True),
        (policy("Cluster:*"), Need("Topic", "orders", ("Update",)), False),
        # A namespace is more specific than all topics, and less than a prefix.
        (
            policy("Topic:*") + policy("Namespace:shop", decision="DENY"),
            Need("Topic", "shop%orders", ("Pub",)),
            False,
        ),
        (
            policy("Topic:shop%*") + policy("Namespace:shop", decision="DENY"),
            Need("Topic", "shop%orders", ("Pub",)),
            True,
        ),
    ],
)
def test_namespace_and_cluster(policies: list[Policy], need: Need, answer: bool) -> None:
    assert allowed(policies, need) is answer


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("10.1.2.3:5000", True),
        ("11.1.2.3:5000", False),
        ("[::ffff:10.1.2.3]:5000", True),
        ("[2001:db8::1]:5000", True),
        ("[2001:db9::1]:5000", False),
        ("unix", False),
        ("", False),
    ],
)
def test_policy_counts_for_its_addresses_only(source: str, answer: bool) -> None:
    found = policy("Topic:orders", sourceIps=["10.0.0.0/8", "2001:db8::/32"])
    assert allowed(found, Need("Topic", "orders", ("Pub",)), source) is answer


def test_denial_by_address_holds_for_an_unknown_address() -> None:
    found = policy("Topic:*") + policy("Topic:orders", decision="DENY", sourceIps=["10.0.0.0/8"])
    need = Need("Topic", "orders", ("Pub",))
    assert allowed(found, need, "11.0.0.1:1")
    assert not allowed(found, need, "10.0.0.1:1") and not allowed(found, need, "")


def test_deciding_policy_is_named() -> None:
    found = policy("Topic:*") + policy("Topic:orders", "Pub", decision="DENY")
    decides = deciding(found, "Topic", "orders", "Pub")
    assert str(decides) == "DENY Pub on Topic:orders (CUSTOM)"
    assert deciding(found, "Group", "orders", "Sub") is None


def test_long_names_stay_in_no_cache() -> None:
    """A caller chooses them, and rights are checked before names."""
    user = User("billing", (b"secret",))
    tracemalloc.start()
    try:
        for number in range(100):
            assert not user.may(topic_need(f"{number}{'a' * 100_000}", PUB))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000


@pytest.mark.parametrize("name", ["orders", "two words", "o'clock", "';reboot;'", "$(reboot)"])
def test_the_command_that_gives_a_right_is_one_command_whatever_the_name(name: str) -> None:
    """A caller chooses the name of a topic, and an operator pastes the command."""
    text = Need("Topic", name, (PUB,)).missing_for(f"user{name}")
    command = text.partition("`")[2].removesuffix("`")
    assert shlex.split(command, comments=True) == [
        *("aerobee", "acl", "create", f"user{name}"),
        *("--resource", f"Topic:{name}", "--actions", "Pub"),
    ]
