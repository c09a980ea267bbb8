"""Enforce the fork rule: a child of a process that has used a client cannot use clients.

The threads of a client do not survive a fork, and the child shares its connections with the parent.
A call in the child would wait forever or break calls of the parent. Every use is therefore refused
at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from aerobee_wire.status import illegal_operation


def _register(after_in_child: Callable[[], None]) -> None:
    if hasattr(os, "register_at_fork"):  # not on Windows, which does not have fork
        os.register_at_fork(after_in_child=after_in_child)


class ForkRule:
    """The fork rule of one process.

    `is_child` is true if the process was forked from a process that had used a client, or from a
    child of such a process.
    """

    def __init__(self, register: Callable[[Callable[[], None]], None] = _register) -> None:
        self.is_child = False
        self._register = register
        self._is_used = False

    def use(self) -> None:
        """Record that a client starts to run.

        Raises MqError with the code ILLEGAL_OPERATION in a child.
        """
        self.check()
        if not self._is_used:
            self._is_used = True
            self._register(self._forked)

    def check(self) -> None:
        """Raise MqError with the code ILLEGAL_OPERATION in a child."""
        if self.is_child:
            raise illegal_operation(
                f"process {os.getpid()} was forked from one that had used a client, and the "
                "client's threads do not survive a fork: make all clients after the fork "
                "(gunicorn's post_fork, Celery's worker_process_init, the initializer of a pool), "
                "or start processes by spawn"
            )

    def _forked(self) -> None:
        self.is_child = True


PROCESS = ForkRule()
