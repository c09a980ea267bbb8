"""The baseline of the proxy: an echo of bytes on the transport that serves the proxy.

`python -m bench.servers.echo_transport` prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.http2.listener import Http2Listener
from aerobee_chassis.rpc.http2.loop import ServiceLoop
from aerobee_chassis.rpc.in_flight import InFlight
from aerobee_chassis.rpc.services import Method, Service
from aerobee_chassis.rpc.transport import Run, refuse_plainly
from bench.servers.echo import METHOD


async def run(_service: str, _method: Method, request: bytes, _call: Call) -> Any:
    return request


async def never(_request: Any, _call: Call) -> None:
    """`run` calls no handler."""


def make_listener(service: str, methods: tuple[Method, ...], run: Run) -> Http2Listener:
    served = [Service(service, methods)]
    return Http2Listener(served, run, InFlight(), refuse_plainly, limits=PortLimits())


def serve(service: str, streams: Mapping[str, bool], run: Run) -> None:
    """Prints the port and serves until standard input closes. `streams`: of each method, whether
    the server streams; `run` gets requests as bytes."""
    methods = tuple(
        Method(name, never, bytes, server_streams=one, client_streams=False)
        for name, one in streams.items()
    )

    async def main() -> None:
        listener = make_listener(service, methods, run)
        print(listener.bind("127.0.0.1:0"), flush=True)
        await listener.start()
        await asyncio.to_thread(sys.stdin.read)
        await listener.stop(0)

    with asyncio.Runner(loop_factory=ServiceLoop) as runner:
        runner.run(main())


if __name__ == "__main__":
    name, method = METHOD.strip("/").split("/")
    serve(name, {method: False}, run)
