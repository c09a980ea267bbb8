"""Scenarios of the official SDKs: how one is declared, and how all of them run at once.

A scenario mostly waits (for leases to end, for retries), so the cases run side by side, each with
topics, groups and clients of its own.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.processes.service import ServiceProcess
from support.proxy.official_sdk import OfficialSdk, Sdk
from support.proxy.sdk_cluster import Clients, Cluster

# Of the invisible duration of push consumers' messages, renewed after a third of it.
LEASE_S = 15
PROCESSES = 8  # at once, of an SDK that needs one for each scenario
LANES = 4  # as many as `make test` has: one for each language
SECRET = "right-horse"  # of the users of the guarded proxy


@dataclass(frozen=True, eq=False)
class Scenario:
    """What an SDK should be able to do. `name` tells its parameter sets apart, e.g. f12_…_1."""

    name: str
    function: Callable[..., None]
    parameters: dict[str, Any]
    credentials: bool
    needs: str


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
    *parameters: dict[str, Any], credentials: bool = False, needs: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declares one for each of the parameter sets. The longest are to be declared first.

    The function gets the cluster and the SDK; with `credentials`, instead of the SDK, what makes
    one with an access key and a secret key, for a proxy that asks for them. `needs`: what not every
    SDK has, as the sdk.toml of one that lacks it says: "push", "change", "recall", "priority".
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        for number, chosen in enumerate(parameters or ({},), 1):
            suffix = f"_{number}" if parameters else ""
            name = f"{function.__name__}{suffix}"
            SCENARIOS.append(Scenario(name, function, chosen, credentials, needs))
        return function

    return declare


def cases(sdks: Iterable[OfficialSdk], *, both_transports: bool) -> Iterator[Case]:
    """Every scenario with each SDK, in both transports or in the one that it uses by default."""
    for sdk in sdks:
        every = (False, True) if sdk.speaks_tls else (False,)
        for tls in every if both_transports else (sdk.tls_by_default,):
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


class ScenarioRunner:
    """Runs cases: those of a lane, which is one SDK in one transport, side by side, and at most
    LANES lanes at once. Where an SDK does several things at once, its lane is one process."""

    def __init__(self, cluster: Cluster, doors: Doors) -> None:
        self._cluster = cluster
        self._doors = doors
        self._lanes = ThreadPoolExecutor(LANES)
        self._closing = threading.Event()
        self.futures: dict[Case, Future[None]] = {}

    def start(self, chosen: Iterable[Case]) -> None:
        lanes = defaultdict[tuple[OfficialSdk, bool], list[Case]](list)
        for case in chosen:
            self.futures[case] = Future()
            lanes[case.sdk, case.tls].append(case)
        for lane in lanes.values():
            self._lanes.submit(self._run_lane, lane)

    def close(self) -> None:
        self._closing.set()
        self._lanes.shutdown(cancel_futures=True)

    def _run_lane(self, lane: list[Case]) -> None:
        side_by_side = lane[0].sdk.side_by_side
        with ExitStack() as stack:
            shared: Sdk | None = None
            try:
                if side_by_side and not self._closing.is_set():
                    shared = stack.enter_context(self._doors.of(lane[0])(self._cluster.home))
            except BaseException as error:  # also that the test is to be skipped
                for case in lane:
                    self.futures[case].set_exception(error)
                return
            pool = stack.enter_context(ThreadPoolExecutor(len(lane) if side_by_side else PROCESSES))
            one_at_a_time = threading.Lock()
            for case in lane:
                # Credentials need processes besides the shared one, and virtual machines are heavy.
                alone = one_at_a_time if case.scenario.credentials else nullcontext()
                pool.submit(self._settle, case, shared, alone)

    def _settle(
        self, case: Case, shared: Sdk | None, alone: AbstractContextManager[object]
    ) -> None:
        try:
            with alone:
                if not self._closing.is_set():
                    self._run(case, shared)
        except BaseException as error:  # the thread that asks for the result raises it
            self.futures[case].set_exception(error)
        else:
            self.futures[case].set_result(None)

    def _run(self, case: Case, shared: Sdk | None) -> None:
        make, home = self._doors.of(case), self._cluster.home
        run = functools.partial(case.scenario.function, self._cluster, **case.scenario.parameters)
        if case.scenario.credentials:
            run(functools.partial(make, home))
        elif shared is not None:
            run(Clients(shared))
        else:
            with make(home) as sdk:
                run(sdk)
