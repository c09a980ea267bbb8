"""Scenarios of the official SDKs: how one is declared, and how all of them run at once.

A scenario mostly waits (for leases to end, for retries), so all cases run side by side, each with
topics, groups and clients of its own.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.processes.service import ServiceProcess
from support.proxy.official_sdk import OfficialSdk, Sdk
from support.proxy.sdk_cluster import Clients, Cluster

# Of the invisible duration of push consumers' messages, renewed after a third of it.
LEASE_S = 15
PROCESSES = 8  # of an SDK that needs one for each scenario
SECRET = "right-horse"  # of the users of the guarded proxy


@dataclass(frozen=True, eq=False)
class Scenario:
    """What an SDK should be able to do. `name` tells its parameter sets apart, e.g. f12_…_1."""

    name: str
    function: Callable[..., None]
    parameters: dict[str, Any]
    credentials: bool


@dataclass(frozen=True)
class Case:
    """A scenario with one SDK, in TLS or in plaintext."""

    sdk: OfficialSdk
    tls: bool
    scenario: Scenario

    def __str__(self) -> str:
        return f"{self.sdk}-{'tls' if self.tls else 'plaintext'}-{self.scenario.name}"


SCENARIOS: list[Scenario] = []


def scenario(
    *parameters: dict[str, Any], credentials: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declares one for each of the parameter sets. The longest are to be declared first.

    The function gets the cluster and the SDK; with `credentials`, instead of the SDK, what makes
    one with an access key and a secret key, for a proxy that asks for them.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        for number, chosen in enumerate(parameters or ({},), 1):
            suffix = f"_{number}" if parameters else ""
            name = f"{function.__name__}{suffix}"
            SCENARIOS.append(Scenario(name, function, chosen, credentials))
        return function

    return declare


def cases(sdks: Iterable[OfficialSdk], *, both_transports: bool) -> Iterator[Case]:
    """Every scenario with each SDK, in both transports or in the one that it uses by default."""
    for sdk in sdks:
        for tls in (False, True) if both_transports else (sdk.tls_by_default,):
            for declared in SCENARIOS:
                yield Case(sdk, tls, declared)


@dataclass(frozen=True)
class Doors:
    """Where the SDKs come in: proxies that take TLS and plaintext. The guarded one asks for
    credentials. `roots`: what a client must trust."""

    proxy: ServiceProcess
    guarded: ServiceProcess
    roots: Path

    def of(self, case: Case) -> Callable[..., Sdk]:
        """What makes the SDK of the case; takes the folder for its log, and credentials."""
        process = self.guarded if case.scenario.credentials else self.proxy
        if not case.tls:
            return functools.partial(Sdk, case.sdk, process.address)
        # As the certificate names it.
        return functools.partial(Sdk, case.sdk, f"localhost:{process.port}", roots=self.roots)


@dataclass
class Lane:
    """The cases of one SDK and transport: their threads, and the process that they share."""

    pool: ThreadPoolExecutor
    lock: threading.Lock = field(default_factory=threading.Lock)
    shared: Sdk | None = None


class ScenarioRunner:
    """Runs cases: nearly all of an SDK in one process where it does several things at once."""

    def __init__(self, cluster: Cluster, doors: Doors) -> None:
        self._cluster = cluster
        self._doors = doors
        self._stack = ExitStack()
        self._lanes: dict[tuple[OfficialSdk, bool], Lane] = {}
        self.futures: dict[Case, Future[None]] = {}

    def start(self, chosen: Iterable[Case]) -> None:
        lanes = defaultdict[tuple[OfficialSdk, bool], list[Case]](list)
        for case in chosen:
            lanes[case.sdk, case.tls].append(case)
        for (sdk, tls), own in lanes.items():
            lane = Lane(ThreadPoolExecutor(len(own) if sdk.side_by_side else PROCESSES))
            self._lanes[sdk, tls] = lane
            for case in own:
                self.futures[case] = lane.pool.submit(self._run, lane, case)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.pool.shutdown(cancel_futures=True)
        self._stack.close()

    def _run(self, lane: Lane, case: Case) -> None:
        make, home = self._doors.of(case), self._cluster.home
        run = functools.partial(case.scenario.function, self._cluster, **case.scenario.parameters)
        if case.scenario.credentials:
            run(functools.partial(make, home))
        elif case.sdk.side_by_side:
            with lane.lock:
                if lane.shared is None:
                    lane.shared = self._stack.enter_context(make(home))
            run(Clients(lane.shared))
        else:
            with make(home) as sdk:
                run(sdk)
