"""docs/permissions.md as data: what the page says, without the table that it is written from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import Default

from aerobee_chassis.rpc.standard_services import HEALTH
from aerobee_wire.identity import ROLES, Identity
from support.repository.tree import ROOT

PAGE = ROOT / "docs" / "permissions.md"
CLUSTER, BROKER = "prod", "broker-a"
WITHOUT_CERTIFICATE = "without a certificate"

_ROW = re.compile(r"\| (\w+) \| ([^|]+) \| ([^|]+) \|")
_RIGHT = re.compile(
    r"(?P<actions>[A-Z]\w+(?: or [A-Z]\w+)*) (?P<kind>Topic|Group|Cluster)"
    r"(?: of each entry| \(`(?P<field>[^`]+)`(?P<or_cluster>; if it is empty, Get Cluster)?"
    r"(?:; none for (?P<free>\w+))?\))?"
)


@dataclass(frozen=True)
class ExpectedRight:
    """One of `actions` on what `field` of the request names. `field` is "" for the cluster."""

    actions: tuple[str, ...]
    kind: str
    field: str
    or_cluster: bool
    free: str


@dataclass(frozen=True)
class Expected:
    """`roles`: that may call. `open`: so may others. `own`, `same_name`: broker-a alone may.

    `rights`: of a user, who may not call at all if it is None.
    """

    roles: frozenset[str]
    open: bool
    own: str
    same_name: bool
    rights: tuple[ExpectedRight, ...] | None


@dataclass(frozen=True)
class Caller:
    """`name`: of the test. `identity`: of its certificate, which has no role if it is None."""

    name: str
    identity: Identity | None


CALLERS = (
    *(Caller(role, Identity(CLUSTER, role, BROKER)) for role in ROLES),
    *(Caller(f"{role} of another cluster", Identity("other", role, BROKER)) for role in ROLES),
    Caller("another broker", Identity(CLUSTER, "broker", "broker-b")),
    Caller("without a role", None),
    Caller(WITHOUT_CERTIFICATE, None),
)


def read() -> Mapping[str, Expected]:
    """Path of an RPC → what the page says."""
    found: dict[str, Expected] = {}
    service = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            service = line[3:]
        elif (row := _ROW.fullmatch(line)) and row[1] != "RPC":
            method, roles, rights = row.groups()
            named, _, condition = roles.partition(", for the name of its certificate")
            named, same, _ = named.partition(", with the name of this broker")
            everybody = named == "each caller"
            found[f"/{service}/{method}"] = Expected(
                frozenset() if everybody else frozenset(named.split(", ")),
                everybody,
                condition.strip(" (`)"),
                bool(same),
                _rights(rights),
            )
    return found


def _rights(cell: str) -> tuple[ExpectedRight, ...] | None:
    if cell == "no user":
        return None
    rights, at = [], 0
    while cell != "none" and at < len(cell):
        match = _RIGHT.match(cell, at)
        assert match is not None, cell
        of_list = match["kind"] != "Cluster" and match["field"] is None
        if not of_list:
            rights.append(
                ExpectedRight(
                    tuple(match["actions"].split(" or ")),
                    match["kind"],
                    match["field"] or "",
                    bool(match["or_cluster"]),
                    match["free"] or "",
                )
            )
        at = match.end() + len(", ")
    return tuple(rights)


def may_call(expected: Expected, caller: Caller) -> bool:
    """Whether the page lets the caller call for broker-a."""
    if expected.open:
        return True
    who = caller.identity
    if who is None or who.cluster != CLUSTER or who.role not in expected.roles:
        return False
    return who.name == BROKER or not (expected.own or expected.same_name)


# ---- users ----

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SYSTEM_TOPICS = ("TBW102", TRACE_TOPIC, "rmq_sys_METADATA_LOG")


@dataclass(frozen=True)
class Grant:
    """`actions` on resources of a kind whose name begins with `prefix`."""

    kind: str
    actions: tuple[str, ...]
    prefix: str = ""

    def allows(self, kind: str, name: str, actions: tuple[str, ...]) -> bool:
        return (
            kind == self.kind
            and name.startswith(self.prefix)
            and not (kind == "Topic" and name in SYSTEM_TOPICS)
            and not set(actions).isdisjoint(self.actions)
        )


def user_may(expected: Expected, grants: tuple[Grant, ...], names: Mapping[str, str]) -> bool:
    """Whether the page lets a user call with a request that has these names in its fields."""
    if expected.open:
        return True
    if expected.rights is None:
        return False
    for right in expected.rights:
        kind, actions, name = right.kind, right.actions, names.get(right.field, "")
        if kind == "Cluster":
            name = CLUSTER
        elif not name:
            if not right.or_cluster:
                continue
            kind, actions, name = "Cluster", ("Get",), CLUSTER
        elif name == right.free:
            continue
        if (kind, name) == ("Topic", TRACE_TOPIC) and "Pub" in actions:
            continue  # each user may send traces
        if not any(grant.allows(kind, name, actions) for grant in grants):
            return False
    return True


def method_of(path: str) -> MethodDescriptor:
    """The RPC of this path, of our contracts or of gRPC's."""
    service, _, method = path[1:].partition("/")
    pool = HEALTH.file.pool if service.startswith("grpc.") else Default()
    return pool.FindServiceByName(service).methods_by_name[method]


def request_for(path: str, names: Mapping[str, str]) -> Any:
    """A request with these names in its fields. A service of gRPC has none."""
    if not path.startswith("/aerobee."):
        return None
    request = message_factory.GetMessageClass(method_of(path).input_type)()
    for field, name in names.items():
        fill(request, field.split("."), name)
    return request


def fill(message: Any, parts: list[str], name: str) -> None:
    field, repeated = parts[0].removesuffix("[]"), parts[0].endswith("[]")
    value = getattr(message, field)
    if len(parts) > 1:
        fill(value.add() if repeated else value, parts[1:], name)
    elif repeated:
        value.append(name)
    else:
        setattr(message, field, name)
