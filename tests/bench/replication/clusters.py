"""Clusters to compare: one broker, or a master with a slave, each with a name server of its own and
a proxy whose port is gRPC's own.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from support.processes.broker_group import BrokerGroup
from support.processes.service import ServiceProcess, namesrv_process

LARGE_FILES = f"mappedFileSizeCommitLog={1 << 30}"
TWO_COPIES = "totalReplicas=2"
SYNCHRONOUS = ("SYNC_MASTER", "inSyncReplicas=2")
ASYNCHRONOUS = ("ASYNC_MASTER",)


@dataclass(frozen=True)
class Cluster:
    """`broker`: the address of the master; `proxy`: of the proxy."""

    group: BrokerGroup
    broker: str
    proxy: str


@contextmanager
def cluster(path: Path, role: str = "", *settings: str) -> Iterator[Cluster]:
    """With `role`, the master's, two copies that are in sync, else one broker."""
    with ExitStack() as silent, ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_process(path / "namesrv")).address
        group = BrokerGroup(path, namesrv, stack)
        if role:
            master = group.add(f"brokerRole={role}", LARGE_FILES, TWO_COPIES, *settings)
            slave = group.add("brokerRole=SLAVE", LARGE_FILES, TWO_COPIES, *settings)
            group.until_in_sync(master, slave)
        else:
            master = group.add(LARGE_FILES)
        at = ("--port", "0", "--namesrv", namesrv, "--set=tlsServerMode=disabled")
        proxy = stack.enter_context(ServiceProcess("aerobee_proxy", *at))
        # What services said is for tests that fail.
        stack.callback(lambda: silent.enter_context(redirect_stdout(io.StringIO())))
        yield Cluster(group, master.address, proxy.address)
