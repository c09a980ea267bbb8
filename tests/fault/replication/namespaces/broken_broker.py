"""A broker that breaks a rule of replication, as a process: `python -m
fault.replication.namespaces.broken_broker ARGUMENT…`. The environment names the rule (`VARIABLE`).

Each lets one of three watermarks of a synchronous group run ahead of the replicas.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from aerobee_broker.__main__ import main
from aerobee_broker.commit.commit import Watermarks
from aerobee_broker.replication.log.sender import ReplicationSender

VARIABLE = "BROKEN_RULE"
# From the right watermarks, and what this broker alone has on its disk.
BREAKAGES: dict[str, Callable[[Watermarks, int], Watermarks]] = {
    "a send is acknowledged before the replicas have it": lambda right, own: right._replace(
        sent=own
    ),
    "a settlement is acknowledged before the replicas have it": lambda right, own: right._replace(
        settled=own
    ),
    "a message is shown before the replicas have it": lambda right, own: right._replace(
        visible=own
    ),
}


def break_rule(name: str) -> None:
    """In this process, for good."""
    right = ReplicationSender.watermarks

    def watermarks(self: ReplicationSender, own: int, flushed: int) -> Watermarks:
        return BREAKAGES[name](right(self, own, flushed), flushed)

    ReplicationSender.watermarks = watermarks  # type: ignore[method-assign]


if __name__ == "__main__":
    break_rule(os.environ[VARIABLE])
    raise SystemExit(main())
