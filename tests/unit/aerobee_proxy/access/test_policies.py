"""Policies: which of them decides, and mistakes in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aerobee_chassis.errors import ConfigError
from aerobee_proxy.access.policies import Need, Policy, allowed
from aerobee_proxy.access.users import Users
from support.proxy.access import policy, write_users


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
        ({"resource": "Cluster:*", "actions": "Pub"}, ".resource"),
        ({"resource": "*", "actions": "All", "decision": "MAYBE"}, ".decision"),
        ({"resource": "*", "actions": "All", "decision": ["ALLOW"]}, ".decision"),
        ({"resource": "*", "actions": "All", "policyType": "MINE"}, ".policyType"),
    ],
)
def test_bad_policy_is_refused(tmp_path: Path, entry: Any, about: str) -> None:
    user = {
        "username": "app",
        "password": "p@ss",
        "policies": [{"resource": "*", "actions": "All"}, entry],
    }
    file = write_users(tmp_path / "users.json", user)
    with pytest.raises(ConfigError) as caught:
        Users(file)
    assert caught.value.about == f"users[0].policies[1]{about}"
    assert "p@ss" not in str(caught.value)
