"""Run the services in the foreground, for `aerobee up`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial

from aerobee_cli.processes.suite import OneProcessSuite, Suite, SuiteOptions
from aerobee_cli.processes.supervise import Stopped, StopSignals

AUTO_CREATION = (
    "topics are created by their first use; to create them by hand only: "
    "--set autoCreateTopicEnable=false"
)


CONNECT_S = 1.0


async def any_listens(addresses: Sequence[str]) -> bool:
    """Return whether a port of `addresses` ("host:port") accepts connections."""
    for address in addresses:
        host, _, port = address.strip().rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(host, int(port))
        except (OSError, ValueError):
            continue
        writer.close()
        return True
    return False


async def serve(options: SuiteOptions, *, one_process: bool = False) -> None:
    """Start the suite, print the ready line and a remark on stdout, and serve until a signal.

    The logs go to stderr. Raises ProcessEnded if a service ends by itself.
    """
    signals = StopSignals()
    on_line = partial(print, file=sys.stderr, flush=True)
    suite: Suite | OneProcessSuite
    if one_process:
        suite = OneProcessSuite(options, on_line)
    else:
        # Restart a broker of a group, so that the group keeps its number of copies.
        restart = options.replicas.copies > 1
        suite = Suite(options, on_line, restart_broker=restart, on_restart=on_line)
    try:
        await signals.guard(suite.start())
        print(
            f"ready namesrv={suite.namesrv_address} broker={suite.broker_address} "
            f"proxy={suite.proxy_address}",
            flush=True,
        )
        if options.creates_topics:
            print(AUTO_CREATION, flush=True)
        if options.replicas.remark:
            print(options.replicas.remark, flush=True)
        etcd = options.replicas.etcd
        if etcd and not await any_listens(etcd.split(",")):
            print(f"etcd does not answer at {etcd}: no master yet", flush=True)
        await signals.guard(suite.watch())
    except Stopped:
        return
    finally:
        await suite.stop()
