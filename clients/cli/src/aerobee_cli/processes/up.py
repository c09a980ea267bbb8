"""The services in the foreground: `aerobee up`."""

from __future__ import annotations

import sys
from functools import partial

from aerobee_cli.processes.one_process import OneProcessSuite
from aerobee_cli.processes.signals import Stopped, StopSignals
from aerobee_cli.processes.suite import Suite, SuiteOptions

AUTO_CREATION = (
    "topics are created by their first use; to create them by hand only: "
    "--set autoCreateTopicEnable=false"
)


async def serve(options: SuiteOptions, *, one_process: bool = False) -> None:
    """Starts the suite, prints the ready line and a remark on stdout, and serves until a signal.

    The logs go to stderr. Raises ProcessEnded when a service ends by itself.
    """
    signals = StopSignals()
    on_line = partial(print, file=sys.stderr, flush=True)
    suite: Suite | OneProcessSuite
    if one_process:
        suite = OneProcessSuite(options, on_line)
    else:
        # A broker of a group comes back and follows, or the others would have one copy less.
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
        await signals.guard(suite.watch())
    except Stopped:
        return
    finally:
        await suite.stop()
