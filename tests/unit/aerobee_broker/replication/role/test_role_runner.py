"""What a replica says of its health, whatever its role."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aerobee_broker.replication.role.role_runner import RoleRunner
from aerobee_wire.status import Code


def roles_over(
    *,
    is_open: bool = True,
    trouble: str = "",
    read_only_reason: str = "",
    switch: Any = None,
) -> RoleRunner:
    flush = SimpleNamespace(read_only_reason=read_only_reason)
    store = SimpleNamespace(flush=flush)
    own: Any = SimpleNamespace(is_open=is_open, trouble=trouble, store=store)
    unused: Any = None
    return RoleRunner(own, unused, switch, unused, unused)


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


class FakeSwitch:
    def __init__(self) -> None:
        self.served: list[Any] = []

    def serve(self, services: Any) -> None:
        self.served.append(services)

    async def end_calls(self, but: Any = ()) -> None:
        self.serve(but)


async def test_an_isolated_master_serves_its_slaves_alone_until_it_is_heard_again() -> None:
    switch: Any = FakeSwitch()
    roles = roles_over(switch=switch)
    master: Any = SimpleNamespace(for_slaves=["follow"])
    other: Any = SimpleNamespace(for_slaves=["follow"])
    roles.master = master
    await roles.set_isolated(other, is_isolated=True)  # one that has left its role by now
    await roles.set_isolated(master, is_isolated=False)
    assert switch.served == []
    await roles.set_isolated(master, is_isolated=True)
    await roles.set_isolated(master, is_isolated=True)
    assert switch.served == [["follow"]]
    assert not roles.serves
    assert roles.refusal().code is Code.SERVICE_NOT_AVAILABLE
    await roles.set_isolated(master, is_isolated=False)
    assert len(switch.served) == 2
    assert roles.serves
