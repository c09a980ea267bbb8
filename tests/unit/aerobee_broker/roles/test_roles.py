"""What a replica says of its health, whatever its role."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aerobee_broker.roles.roles import Roles


def roles_over(*, is_open: bool = True, trouble: str = "", read_only_reason: str = "") -> Roles:
    flush = SimpleNamespace(read_only_reason=read_only_reason)
    store = SimpleNamespace(flush=flush)
    own: Any = SimpleNamespace(is_open=is_open, trouble=trouble, store=store)
    unused: Any = None
    return Roles(own, unused, unused, unused, unused)


@pytest.mark.parametrize(
    ("fields", "serves"),
    [
        ({}, True),
        ({"is_open": False}, True),
        ({"is_open": False, "trouble": "its store does not open"}, False),
        ({"read_only_reason": "its disk failed"}, False),
    ],
)
async def test_a_replica_whose_disk_takes_no_writes_is_not_healthy(
    fields: dict[str, Any], *, serves: bool
) -> None:
    """A master says so itself too, and both must agree."""
    assert roles_over(**fields).serves is serves


async def test_a_slave_is_healthy_until_its_master_refuses_it() -> None:
    roles = roles_over()
    slave: Any = SimpleNamespace(refusal="")
    roles.slave = slave
    assert roles.serves
    slave.refusal = "messageDelayLevel differs"
    assert not roles.serves
