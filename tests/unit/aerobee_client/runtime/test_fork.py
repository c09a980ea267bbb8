"""What a process and its forked children may do, told to a rule of their own."""

from __future__ import annotations

from collections.abc import Callable

from aerobee_client.runtime.fork import ForkRule
from aerobee_wire.status import Code
from support.codes import raises_code


def test_a_child_of_a_process_that_used_a_client_can_use_none() -> None:
    forks: list[Callable[[], None]] = []
    rule = ForkRule(forks.append)
    rule.check()
    assert forks == []  # a process that only imports the package may fork
    rule.use()
    rule.use()
    assert len(forks) == 1
    forks[0]()
    assert rule.is_child
    for refused in (rule.use, rule.check):
        with raises_code(Code.ILLEGAL_OPERATION):
            refused()
