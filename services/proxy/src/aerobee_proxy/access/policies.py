"""Evaluate policies for topics and consumer groups. This module does no I/O.

A policy in the file of users is an object like this one:

    {"resource": "Topic:orders*", "actions": ["Pub", "Sub"], "decision": "ALLOW"}

A resource is `Topic:NAME`, `Group:NAME`, `Topic:PREFIX*`, `Topic:*` or `*`. Of the policies that
match a request, the policy with the most specific resource decides. If several policies are equally
specific, a policy that denies wins. If no policy matches, the request is denied. Policies of type
DEFAULT count only if no policy of type CUSTOM matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aerobee_chassis.errors import ConfigError

ANY = "*"
TOPIC, GROUP = "Topic", "Group"
PUB, SUB = "Pub", "Sub"
ALL_ACTIONS = frozenset({"All", "Any"})
ACTIONS = frozenset({PUB, SUB}) | ALL_ACTIONS
DECISIONS = {"ALLOW": True, "DENY": False}
TYPES = ("CUSTOM", "DEFAULT")
KEYS = frozenset({"resource", "actions", "decision", "policyType"})


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a request needs: at least one of `actions` on one topic or consumer group."""

    kind: str
    name: str
    actions: Sequence[str]

    def __str__(self) -> str:
        return f"{' or '.join(self.actions)} on {self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Policy:
    kind: str  # TOPIC, GROUP or ANY
    pattern: str  # a name, a prefix followed by *, or ANY
    actions: frozenset[str]
    allow: bool
    custom: bool = True

    def matches(self, kind: str, name: str, action: str) -> bool:
        if self.kind not in (ANY, kind) or not (self.actions & (ALL_ACTIONS | {action})):
            return False
        if self.pattern.endswith(ANY):
            return name.startswith(self.pattern[:-1])
        return name == self.pattern

    @property
    def rank(self) -> tuple[bool, bool, bool, int, bool]:
        """Return the sort key: of the policies that match, the one with the greatest decides."""
        literal = not self.pattern.endswith(ANY)
        return self.custom, self.kind != ANY, literal, len(self.pattern), not self.allow


def allowed(policies: Iterable[Policy], need: Need) -> bool:
    return any(_decision(policies, need, action) for action in need.actions)


def _decision(policies: Iterable[Policy], need: Need, action: str) -> bool:
    matching = [policy for policy in policies if policy.matches(need.kind, need.name, action)]
    return max(matching, key=lambda policy: policy.rank).allow if matching else False


def policies_of(entry: object) -> list[Policy]:
    """Parse one entry of a user's "policies". Return one policy for each resource of the entry.

    Raises ConfigError if the entry is invalid. The caller puts "has a policy " before the text of
    the error, and "policies[0]" (the index of the entry) before its `about`.
    """
    if not isinstance(entry, dict):
        raise ConfigError("it is not an object")
    unknown = sorted(map(str, entry.keys() - KEYS))
    if unknown:
        problem = f"with an unknown key {unknown[0]!r}: {', '.join(sorted(KEYS))} are known"
        raise ConfigError(problem, f".{unknown[0]}")
    resources, actions = _texts(entry, "resource"), _texts(entry, "actions")
    strange = sorted(set(actions) - ACTIONS)
    if strange:
        problem = f"with the action {strange[0]!r}: {', '.join(sorted(ACTIONS))} are known"
        raise ConfigError(problem, ".actions")
    decision = str(entry.get("decision", "ALLOW"))
    kind = entry.get("policyType", "CUSTOM")
    if decision not in DECISIONS:
        raise ConfigError("whose decision is not ALLOW or DENY", ".decision")
    if kind not in TYPES:
        raise ConfigError("whose policyType is not CUSTOM or DEFAULT", ".policyType")
    return [
        Policy(
            *_resource(resource),
            actions=frozenset(actions),
            allow=DECISIONS[decision],
            custom=kind == "CUSTOM",
        )
        for resource in resources
    ]


def _texts(entry: dict[str, object], key: str) -> list[str]:
    value = entry.get(key)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise ConfigError(f"that needs {key}: a text or a list of texts", f".{key}")
    return texts


def _resource(text: str) -> tuple[str, str]:
    if text == ANY:
        return ANY, ANY
    kind, _, pattern = text.partition(":")
    if kind not in (TOPIC, GROUP) or not pattern or ANY in pattern[:-1]:
        raise ConfigError(
            f"with the resource {text[:64]!r}: write Topic:NAME, Group:NAME, Topic:PREFIX* or *",
            ".resource",
        )
    return kind, pattern
