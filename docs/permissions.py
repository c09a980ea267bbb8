"""Write the table of docs/permissions.md from the permissions of RPCs.

    .venv/bin/python docs/permissions.py

The text above the table stays as it is. A unit test fails if the page and the permissions differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from aerobee_wire.access.policies import CLUSTER
from aerobee_wire.identity import ROLES
from aerobee_wire.permissions import EACH, TABLE, Right, Row

PAGE = Path(__file__).with_name("permissions.md")
START = "<!-- The rest is written by docs/permissions.py. -->\n"


def lines(table: Mapping[str, Row] = TABLE) -> Iterator[str]:
    """Yield the lines of the tables, one table for each service."""
    for service, paths in groupby(table, _service):
        yield f"\n## {service}\n"
        yield "| RPC | roles | right of a user |"
        yield "|---|---|---|"
        for path in paths:
            row = table[path]
            yield f"| {path.rpartition('/')[2]} | {roles_of(row)} | {rights_of(row)} |"


def _service(path: str) -> str:
    return path[1:].rpartition("/")[0]


def roles_of(row: Row) -> str:
    """Return the cell of the roles, in the order in which certificates have them."""
    if row.is_open:
        return "each caller"
    condition = ""
    if row.own:
        condition = f", for the name of its certificate (`{row.own}`)"
    elif row.same_name:
        condition = ", with the name of this broker"
    return (", ".join(role for role in ROLES if role in row.roles) or "no role") + condition


def rights_of(row: Row) -> str:
    """Return the cell of the rights."""
    if row.is_open:
        return "none"
    if row.rights is None:
        return "no user"
    return ", ".join(map(_right, row.rights)) or "none"


def _right(right: Right) -> str:
    actions = " or ".join(right.actions)
    if right.kind == CLUSTER:
        return f"{actions} Cluster"
    if right.field == EACH:
        return f"{actions} {right.kind} of each entry"
    free = f"; none for {right.free}" if right.free else ""
    empty = "; if it is empty, Get Cluster" if right.or_cluster else ""
    return f"{actions} {right.kind} (`{right.field}`{empty}{free})"


def page(text: str) -> str:
    """Return the page with the tables as they are now."""
    head, mark, _ = text.partition(START)
    return head + mark + "\n".join(lines()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
