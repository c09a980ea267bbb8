"""docs/permissions.md as data: what the page says, without the table that it is written from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from aerobee_wire.identity import ROLES, Identity
from support.repository.tree import ROOT

PAGE = ROOT / "docs" / "permissions.md"
CLUSTER, BROKER = "prod", "broker-a"

_ROW = re.compile(r"\| (\w+) \| ([^|]+) \| ([^|]+) \|")


@dataclass(frozen=True)
class Expected:
    """`roles`: that may call. `open`: so may others. `own`, `same_name`: broker-a alone may."""

    roles: frozenset[str]
    open: bool
    own: str
    same_name: bool


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
)


def read() -> Mapping[str, Expected]:
    """Path of an RPC → what the page says."""
    found: dict[str, Expected] = {}
    service = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            service = line[3:]
        elif row := _ROW.fullmatch(line):
            method, roles, _ = row.groups()
            named, _, condition = roles.partition(", for the name of its certificate")
            named, same, _ = named.partition(", with the name of this broker")
            everybody = named == "each caller"
            found[f"/{service}/{method}"] = Expected(
                frozenset() if everybody else frozenset(named.split(", ")),
                everybody,
                condition.strip(" (`)"),
                bool(same),
            )
    return found


def may_call(expected: Expected, caller: Caller) -> bool:
    """Whether the page lets the caller call for broker-a."""
    if expected.open:
        return True
    who = caller.identity
    if who is None or who.cluster != CLUSTER or who.role not in expected.roles:
        return False
    return who.name == BROKER or not (expected.own or expected.same_name)
