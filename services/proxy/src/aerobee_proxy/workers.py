"""Run several proxy processes on one port to use more than one core (option `workers=N`).

The parent process binds the port, with a listening socket for each worker, and the kernel spreads
connections over these sockets. A worker is a complete proxy, and a client may have connections to
several workers. A worker that is started again gets the same socket, on which new connections wait
meanwhile.
"""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Mapping, Sequence

from aerobee_chassis import process
from aerobee_chassis.addresses import join_address
from aerobee_chassis.errors import StartError
from aerobee_chassis.rpc.http2.sockets import listen
from aerobee_chassis.workers import (
    FAILED,
    OnReady,
    Parent,
    WorkerKind,
    metrics_fields,
    options_of_worker,
)
from aerobee_proxy.app import ProxyApp
from aerobee_proxy.config import ProxyOptions


def run(options: ProxyOptions) -> int:
    """Run until SIGTERM or SIGINT. Return the exit code."""
    try:
        listeners = _listeners(options)
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return Parent(ProxyWorkers(options, listeners)).run()


def _listeners(options: ProxyOptions) -> list[list[socket.socket]]:
    """Return the listening sockets of each worker.

    Raises PortInUse if another process listens on the port, even if that process shares the port,
    and StartError on other systems than Linux, which give all connections to one of the sockets.
    """
    if sys.platform != "linux":
        raise StartError(f"workers={options.workers} needs Linux: use workers=1", "workers")
    host = options.bind_address
    alone = listen(host, options.grpc_server_port)
    port = alone[0].getsockname()[1]
    for listener in alone:
        listener.close()
    return [listen(host, port, reuse_port=True) for _ in range(options.workers)]


class ProxyWorkers(WorkerKind):
    name = "worker"
    stop_ms = 10_000

    def __init__(self, options: ProxyOptions, listeners: list[list[socket.socket]]) -> None:
        self.count = options.workers
        self._options = options
        self._listeners = listeners

    def label(self, number: int) -> object:
        return number

    def serve(self, number: int, former: Mapping[str, object], on_ready: OnReady) -> int:
        listeners = self._listeners.pop(number)
        self.release()
        options = options_of_worker(self._options, self.name, number).model_copy(
            update={"workers": 1}
        )
        return process.run(lambda: ProxyApp(options, listeners=listeners), on_ready=on_ready)

    def ready_fields(self, ready: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
        port = self._listeners[0][0].getsockname()[1]
        return {
            "address": join_address(self._options.bind_address, port),
            "tls": self._options.tls_server_mode,
            **metrics_fields(ready),
        }

    def release(self) -> None:
        for listener in itertools.chain.from_iterable(self._listeners):
            listener.close()
        self._listeners.clear()
