"""Scenarios of the official SDKs: how one is declared, and how all of them run at once.

A scenario mostly waits (for leases to end, for retries), so all cases run side by side, each with
topics, groups and clients of its own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from support.processes.service import ServiceProcess
from support.proxy.official_sdk import NodeSdk, PythonSdk
from support.proxy.sdk_cluster import Clients, Cluster

# Of the invisible duration of push consumers' messages, renewed after a third of it.
LEASE_S = 15
# Python's SDK does one thing at a time, so that every scenario needs a process.
PYTHON_PROCESSES = 8
SDKS = ("python", "node")
SECRET = "right-horse"  # of the users of the guarded proxy


@dataclass(frozen=True)
class Case:
    sdk: str
    function: Callable[..., None]
    parameters: dict[str, Any]
    credentials: bool


CASES: dict[str, Case] = {}


def scenario(
    *parameters: dict[str, Any], credentials: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A case for each SDK and each of the parameter sets. The longest are to be declared first.

    The function gets the cluster and the SDK; with `credentials`, instead of the SDK, what makes
    one with an access key and a secret key, for a proxy that asks for them.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        for sdk in SDKS:
            for number, chosen in enumerate(parameters or ({},), 1):
                suffix = f"_{number}" if parameters else ""
                name = f"{sdk}-{function.__name__}{suffix}"
                CASES[name] = Case(sdk, function, chosen, credentials)
        return function

    return declare


class ScenarioRunner:
    """Runs cases. Python's SDK gets a process for each, Node.js' one for nearly all."""

    def __init__(self, cluster: Cluster, guarded: ServiceProcess) -> None:
        self._cluster = cluster
        self._guarded = guarded
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._node: NodeSdk | None = None
        self._pools = {
            "python": ThreadPoolExecutor(PYTHON_PROCESSES),
            "node": ThreadPoolExecutor(len(CASES)),
        }
        self.futures: dict[str, Future[None]] = {}

    def start(self, name: str) -> None:
        case = CASES[name]
        run = {"python": self._in_python, "node": self._in_node}[case.sdk]
        if case.credentials:
            run = self._with_credentials
        self.futures[name] = self._pools[case.sdk].submit(run, case)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)
        self._stack.close()

    def _with_credentials(self, case: Case) -> None:
        make = {"python": PythonSdk, "node": NodeSdk}[case.sdk]
        guarded = functools.partial(make, self._guarded.address, self._cluster.home)
        case.function(self._cluster, guarded, **case.parameters)

    def _in_python(self, case: Case) -> None:
        with PythonSdk(self._cluster.proxy.address, self._cluster.home) as sdk:
            case.function(self._cluster, sdk, **case.parameters)

    def _in_node(self, case: Case) -> None:
        with self._lock:
            if self._node is None:
                made = NodeSdk(self._cluster.proxy.address, self._cluster.home)
                self._node = self._stack.enter_context(made)
        case.function(self._cluster, Clients(self._node), **case.parameters)
