"""Scenarios of the official SDKs: how one is declared, and how all of them run at once.

A scenario mostly waits (for leases to end, for retries), so the cases run side by side, each with
topics, groups and clients of its own.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.processes.service import ServiceProcess
from support.proxy.official_sdk import OfficialSdk, Sdk
from support.proxy.sdk_cluster import Clients, Cluster
from support.running import secure

# Of the invisible duration of push consumers' messages, renewed after a third of it.
LEASE_S = 15
PROCESSES = 8  # at once, of an SDK that needs one for each scenario
LANES = 2  # at once: more, and requests of SDKs run into their 3 s on a small machine
SECRET = "right-horse"  # of the users of the guarded proxy


@dataclass(frozen=True, eq=False)
class Scenario:
    """What an SDK should be able to do. `name` tells its parameter sets apart, e.g. f12_…_1."""

    name: str
    function: Callable[..., None]
    parameters: dict[str, Any]
    credentials: bool
    needs: str
    brokers: str
    both_proxies: bool
    lasting: bool

    @property
    def has_own_process(self) -> bool:
        return self.credentials or self.both_proxies

    def suits(self, brokers: int, *, every_way: bool) -> bool:
        """Whether it is to run in a cluster with that many brokers."""
        if self.lasting and not every_way:
            return False
        if self.brokers == "two":
            return brokers == 2
        return brokers == 1 or (every_way and self.brokers == "any" and not self.credentials)


@dataclass(frozen=True)
class Case:
    """A scenario with one SDK, in TLS or in plaintext, with one broker and proxy or two of each."""

    sdk: OfficialSdk
    tls: bool
    brokers: int
    scenario: Scenario

    @property
    def lane(self) -> tuple[OfficialSdk, bool, int]:
        """What it has in common with those that it runs beside, in one process where it can."""
        return self.sdk, self.tls, self.brokers

    def __str__(self) -> str:
        transport = "tls" if self.tls else "plaintext"
        cluster = "" if self.brokers == 1 else f"-{self.brokers}_brokers"
        return f"{self.sdk}-{transport}{cluster}-{self.scenario.name}"


SCENARIOS: list[Scenario] = []


def scenario(
    *parameters: dict[str, Any],
    credentials: bool = False,
    needs: str = "",
    brokers: str = "any",
    both_proxies: bool = False,
    lasting: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declares one for each of the parameter sets. The longest are to be declared first.

    The function gets the cluster and the SDK; with `credentials`, instead of the SDK, what makes
    one with an access key and a secret key, for a proxy that asks for them. `needs`: what not every
    SDK has, as the sdk.toml of one that lacks it says: "push", "change", "recall", "priority",
    "lite" and what follows from it.
    `brokers`: "one", where what is asked for holds on each broker for itself; or "two".
    `both_proxies`: they are the endpoints of its clients. `lasting`: for `make conformance` only.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        for number, chosen in enumerate(parameters or ({},), 1):
            suffix = f"_{number}" if parameters else ""
            name = f"{function.__name__}{suffix}"
            SCENARIOS.append(
                Scenario(name, function, chosen, credentials, needs, brokers, both_proxies, lasting)
            )
        return function

    return declare


def cases(sdks: Iterable[OfficialSdk], *, every_way: bool) -> Iterator[Case]:
    """Every scenario with each SDK: in the transport that it uses by default, with one broker
    where two are not needed; or in both and also with two."""
    for sdk in sdks:
        transports = [sdk.tls_by_default]
        if secure.enabled() is not None:
            transports = [True] if sdk.speaks_tls else []
        elif every_way and sdk.speaks_tls:
            transports = [False, True]
        for brokers, tls in itertools.product((1, 2), transports):
            for declared in SCENARIOS:
                if declared.suits(brokers, every_way=every_way):
                    yield Case(sdk, tls, brokers, declared)


@dataclass(frozen=True)
class Site:
    """A cluster whose proxies take TLS and plaintext. The guarded proxy asks for credentials.
    `roots`: what a client must trust."""

    cluster: Cluster
    guarded: ServiceProcess
    roots: Path

    def door(self, case: Case) -> Callable[..., Sdk]:
        """What makes the SDK of the case; takes credentials. Where there are two proxies, the one
        is called in plaintext and the other in TLS."""
        proxy = self.cluster.proxies[-1] if case.tls else self.cluster.proxies[0]
        if case.scenario.credentials:
            proxy = self.guarded
        address = proxy.address
        if case.scenario.both_proxies:
            address = case.sdk.list_of(proxy.address for proxy in self.cluster.proxies)
        roots = self.roots if case.tls else None
        return functools.partial(Sdk, case.sdk, address, self.cluster.home, roots=roots)


class ScenarioRunner:
    """Runs cases: those of a lane side by side, and at most LANES lanes at once. Where an SDK does
    several things at once, its lane is one process, in which `tls_at_once` of its sdk.toml may
    limit the cases over TLS. `sites`: by their number of brokers.
    """

    def __init__(self, sites: Mapping[int, Site]) -> None:
        self._sites = sites
        self._lanes = ThreadPoolExecutor(LANES)
        self._closing = threading.Event()
        self.futures: dict[Case, Future[None]] = {}

    def start(self, chosen: Iterable[Case]) -> None:
        lanes = defaultdict[Any, list[Case]](list)
        for case in chosen:
            self.futures[case] = Future()
            lanes[case.lane].append(case)
        for lane in lanes.values():
            self._lanes.submit(self._run_lane, lane)

    def close(self) -> None:
        self._closing.set()
        self._lanes.shutdown(cancel_futures=True)

    def _run_lane(self, lane: list[Case]) -> None:
        side_by_side = lane[0].sdk.side_by_side
        site = self._sites[lane[0].brokers]
        with ExitStack() as stack:
            shared: Sdk | None = None
            try:
                without = [case for case in lane if not case.scenario.has_own_process]
                if side_by_side and without and not self._closing.is_set():
                    shared = stack.enter_context(site.door(without[0])())
            except BaseException as error:  # also that the test is to be skipped
                for case in lane:
                    self.futures[case].set_exception(error)
                return
            pool = stack.enter_context(ThreadPoolExecutor(len(lane) if side_by_side else PROCESSES))
            one_at_a_time = threading.Lock()
            most = lane[0].sdk.most_at_once(tls=lane[0].tls)
            together: AbstractContextManager[object] = nullcontext()
            if most is not None:
                together = threading.Semaphore(most)
            for case in lane:
                # Besides the shared process, one after another: virtual machines are heavy.
                turn = one_at_a_time if case.scenario.has_own_process else together
                pool.submit(self._settle, case, site, shared, turn)

    def _settle(
        self, case: Case, site: Site, shared: Sdk | None, turn: AbstractContextManager[object]
    ) -> None:
        try:
            with turn:
                if not self._closing.is_set():
                    self._run(case, site, shared)
        except BaseException as error:  # the thread that asks for the result raises it
            self.futures[case].set_exception(error)
        else:
            self.futures[case].set_result(None)

    def _run(self, case: Case, site: Site, shared: Sdk | None) -> None:
        make = site.door(case)
        run = functools.partial(case.scenario.function, site.cluster, **case.scenario.parameters)
        if case.scenario.credentials:
            run(make)
        elif shared is not None and not case.scenario.both_proxies:
            run(Clients(shared))
        else:
            with make() as sdk:
                run(sdk)
