"""Evaluate policies for clusters, namespaces, topics and consumer groups. This module does no I/O.

A policy is an object like this one:

    {"resource": "Topic:orders*", "actions": ["Pub", "Sub"], "decision": "ALLOW",
     "sourceIps": ["10.0.0.0/8"]}

A resource is `*`, or `Cluster:`, `Namespace:`, `Topic:` or `Group:` with a name, a `PREFIX*` or
`*`. A policy for a namespace also covers the topics and groups in it, whose stored names are
`NAMESPACE%NAME`. A policy with sourceIps counts only for calls from these addresses.

Of the policies that match a request, the policy with the most specific resource decides. If several
policies are equally specific, a policy that denies wins. If no policy matches, the request is
denied. Policies of type DEFAULT count only if no policy of type CUSTOM matches.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from aerobee_wire import topics
from aerobee_wire.status import invalid_parameter

ANY = "*"
CLUSTER, NAMESPACE, TOPIC, GROUP = "Cluster", "Namespace", "Topic", "Group"
KINDS = (CLUSTER, NAMESPACE, TOPIC, GROUP)
PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST = (
    "Pub",
    "Sub",
    "Create",
    "Update",
    "Delete",
    "Get",
    "List",
)
ALL_ACTIONS = frozenset({"All", "Any"})
ACTIONS = frozenset({PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST}) | ALL_ACTIONS
DECISIONS = {"ALLOW": True, "DENY": False}
TYPES = ("CUSTOM", "DEFAULT")
KEYS = frozenset({"resource", "actions", "decision", "policyType", "sourceIps"})
NAMESPACE_SEPARATOR = "%"  # of a stored name
MAX_RESOURCE_CHARACTERS = 255
# No cache keeps longer names. Rights are checked before names, whose length a caller chooses.
LONGEST_KEPT = topics.MAX_DERIVED_TOPIC_CHARACTERS

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Need(NamedTuple):
    """A right that a request needs: at least one of `actions` on one resource.

    `kind` is a kind of resource, and `name` is its stored name.
    """

    kind: str
    name: str
    actions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' or '.join(self.actions)} on {self.kind}:{self.name}"

    def missing_for(self, user: str) -> str:
        """Return the error for a user without this right. It has the command that gives the right.

        A caller chooses the names, and an operator may paste the command into a shell.
        """
        resource = f"{self.kind}:{self.name}"
        command = ["aerobee", "acl", "create", user, "--resource", resource]
        shown = shlex.join([*command, "--actions", ",".join(self.actions[:1])])
        return f"user {user!r} lacks {self}: allow it with `{shown}`"


@dataclass(frozen=True, slots=True)
class Policy:
    kind: str  # one of KINDS, or ANY
    pattern: str  # a name, a prefix followed by *, or ANY
    actions: frozenset[str]
    allow: bool
    custom: bool = True
    sources: tuple[Network, ...] = ()  # empty: calls from any address

    @property
    def resource(self) -> str:
        return ANY if self.kind == ANY else f"{self.kind}:{self.pattern}"

    @property
    def decision(self) -> str:
        return "ALLOW" if self.allow else "DENY"

    @property
    def type(self) -> str:
        return "CUSTOM" if self.custom else "DEFAULT"

    def __str__(self) -> str:
        sources = f" from {','.join(map(str, self.sources))}" if self.sources else ""
        actions = ",".join(sorted(self.actions))
        return f"{self.decision} {actions} on {self.resource}{sources} ({self.type})"

    def matches(self, kind: str, name: str, action: str, source: str = "") -> bool:
        """Return whether this policy counts for an action on a resource.

        `source` is the "host:port" of the caller. If it is unknown, a policy that is bound to
        addresses does not allow, but denies.
        """
        return (
            bool(self.actions & (ALL_ACTIONS | {action}))
            and self._covers(kind, name)
            and self._counts_for(source)
        )

    def _covers(self, kind: str, name: str) -> bool:
        if self.kind == NAMESPACE and kind in (TOPIC, GROUP):
            kind, name = NAMESPACE, namespace_of(name)
            if not name:
                return False
        if self.kind not in (ANY, kind):
            return False
        if self.pattern.endswith(ANY):
            return name.startswith(self.pattern[:-1])
        return name == self.pattern

    def _counts_for(self, source: str) -> bool:
        if not self.sources:
            return True
        address = address_of(source)
        if address is None:
            return not self.allow
        return any(address in network for network in self.sources)

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, bool, int, bool]:
        """Return the sort key: of the policies that match, the one with the greatest decides.

        A policy for a namespace is more specific than one for all topics, and less specific than
        one for a topic or for topics with a prefix.
        """
        return (
            self.custom,
            self.kind != ANY,
            self.pattern != ANY,
            self.kind != NAMESPACE,
            not self.pattern.endswith(ANY),
            len(self.pattern),
            not self.allow,
        )

    def to_json(self) -> dict[str, object]:
        """Return the object from which `policies_of` makes this policy."""
        found: dict[str, object] = {
            "resource": self.resource,
            "actions": sorted(self.actions),
            "decision": self.decision,
            "policyType": self.type,
        }
        if self.sources:
            found["sourceIps"] = [str(network) for network in self.sources]
        return found


def topic_need(stored: str, *actions: str) -> Need:
    """Return the right that actions on a topic need, by its stored name.

    A retry or dead-letter topic belongs to its group: the right is needed on the group, and Sub in
    place of Pub.
    """
    need = _topic_need if len(stored) <= LONGEST_KEPT else _topic_need.__wrapped__
    return need(stored, *actions)


@lru_cache(maxsize=1_024)  # each call of a user asks for it
def _topic_need(stored: str, *actions: str) -> Need:
    group = topics.group_of(stored)
    if group is None:
        return Need(TOPIC, stored, actions)
    of_group = (SUB if action == PUB else action for action in actions)
    return Need(GROUP, group, tuple(dict.fromkeys(of_group)))


def is_of_system(need: Need) -> bool:
    """Return whether the resource is the system's: no policy counts there."""
    if need.kind == TOPIC:
        return topics.is_system(need.name)
    return need.kind == GROUP and topics.is_system_group(need.name)


def writes_traces(need: Need) -> bool:
    """Return whether this is the right to send traces, which each user has.

    Only a SUPER user may read them: they name the topics, groups and keys of all users.
    """
    return need.kind == TOPIC and need.name == topics.TRACE_TOPIC and PUB in need.actions


def namespace_of(stored: str) -> str:
    """Return the namespace in the stored name of a topic or group, or "" without one."""
    group = topics.group_of(stored)
    space, separator, name = (stored if group is None else group).partition(NAMESPACE_SEPARATOR)
    return space if separator and name else ""


def allowed(policies: Iterable[Policy], need: Need, source: str = "") -> bool:
    """Return whether `policies` allow a request from the "host:port" `source`."""
    policies = tuple(policies)
    return any(
        (policy := deciding(policies, need.kind, need.name, action, source)) is not None
        and policy.allow
        for action in need.actions
    )


def deciding(
    policies: Iterable[Policy], kind: str, name: str, action: str, source: str = ""
) -> Policy | None:
    """Return the policy that decides about one action, or None if no policy matches."""
    matching = [policy for policy in policies if policy.matches(kind, name, action, source)]
    return max(matching, key=lambda policy: policy.rank) if matching else None


@lru_cache(maxsize=1_024)  # called by every RPC of a client
def address_of(source: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address in `source`, an address or "host:port". None if it has none."""
    # An IPv6 address without a port contains colons, too.
    for host in (source, source.rpartition(":")[0].strip("[]")):
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            continue
        if isinstance(address, ipaddress.IPv6Address):
            return address.ipv4_mapped or address
        return address
    return None


@lru_cache(maxsize=1_024)  # called by every RPC of a user: the hash of an address takes 0.4 µs
def host_of(source: str) -> str:
    """Return the address in `source` as a text that is the same for each way to write it."""
    return str(address_of(source))


# ---- parsing ----


def policies_of(entry: object) -> list[Policy]:
    """Parse one object of the form above. Return one policy for each resource.

    Raises MqError with the code INVALID_PARAMETER. The caller puts "has a policy " before the text
    of the error, and "policies[0]" (the index of the entry) before its `about`.
    """
    if not isinstance(entry, dict):
        raise invalid_parameter("it is not an object")
    unknown = sorted(map(str, entry.keys() - KEYS))
    if unknown:
        problem = f"with an unknown key {unknown[0]!r}: {', '.join(sorted(KEYS))} are known"
        raise invalid_parameter(problem, about=f".{unknown[0]}")
    sources = _texts(entry, "sourceIps") if "sourceIps" in entry else []
    return [
        policy(
            resource,
            _texts(entry, "actions"),
            decision=entry.get("decision", "ALLOW"),
            type_=entry.get("policyType", "CUSTOM"),
            source_ips=sources,
        )
        for resource in _texts(entry, "resource")
    ]


def policy(
    resource: str,
    actions: Sequence[str],
    *,
    decision: object = "ALLOW",
    type_: object = "CUSTOM",
    source_ips: Sequence[str] = (),
) -> Policy:
    """Return a policy after a check of its parts. Raises the errors of `policies_of`."""
    kind, pattern = parse_resource(resource)
    if not actions:
        raise invalid_parameter("that needs an action", about=".actions")
    strange = sorted(set(actions) - ACTIONS)
    if strange:
        problem = f"with the action {strange[0]!r}: {', '.join(sorted(ACTIONS))} are known"
        raise invalid_parameter(problem, about=".actions")
    if not isinstance(decision, str) or decision not in DECISIONS:
        raise invalid_parameter("whose decision is not ALLOW or DENY", about=".decision")
    if type_ not in TYPES:
        raise invalid_parameter("whose policyType is not CUSTOM or DEFAULT", about=".policyType")
    return Policy(
        kind,
        pattern,
        frozenset(actions),
        DECISIONS[decision],
        type_ == "CUSTOM",
        tuple(sorted({_network(text) for text in source_ips}, key=str)),
    )


def parse_resource(text: str) -> tuple[str, str]:
    """Return kind and pattern of a resource. Raises the errors of `policies_of`."""
    if text == ANY:
        return ANY, ANY
    kind, _, pattern = text.partition(":")
    if (
        kind not in KINDS
        or not pattern
        or ANY in pattern[:-1]
        or len(text) > MAX_RESOURCE_CHARACTERS
        or not text.isprintable()
    ):
        raise invalid_parameter(
            f"with the resource {text[:64]!r}: write Topic:NAME, Group:NAME, Namespace:NAME, "
            "Cluster:NAME, the same with PREFIX*, or *",
            about=".resource",
        )
    return kind, pattern


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise invalid_parameter(
            f"with the address {text[:64]!r}: write an address, or a network like 10.0.0.0/8",
            about=".sourceIps",
        ) from None


def _texts(entry: dict[str, object], key: str) -> list[str]:
    value = entry.get(key)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise invalid_parameter(f"that needs {key}: a text or a list of texts", about=f".{key}")
    return texts
