"""One history: a group with clients, and faults one after the other. Everything random comes from
its seed; a folder keeps what clients and brokers told.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path

from fault.replication.namespaces.faults import Fault, scene_of
from fault.replication.namespaces.group import (
    CLIENT,
    PROXY,
    PROXY_PORT,
    READER,
    SDK_CLIENT,
    Group,
)
from fault.replication.namespaces.recording import LoadProcess, Report, SdkLoad
from fault.replication.namespaces.verdict import History, Round
from support.clock.polling import until_sync
from support.processes.network_namespaces import Network
from support.proxy.official_sdk import OfficialSdk

RECOVERY_S = 90.0  # or it is stuck
CALM_S = 1.0  # between rounds
SENDS = 5  # of each client after a round: it works again


class Run:
    """A group and its clients, while faults come and go."""

    def __init__(self, group: Group, python: LoadProcess, sdk: SdkLoad | None) -> None:
        self.group = group
        self.clients: dict[str, LoadProcess | SdkLoad] = {"python": python}
        if sdk is not None:
            self.clients["sdk"] = sdk
        self.rounds: list[Round] = []

    def round(self, fault: Fault, chance: random.Random) -> None:
        """Until everything is well again. Raises TimeoutError."""
        scene = scene_of(self.group, chance)
        epoch, began = self.group.epoch, time.monotonic()
        end = fault.begin(scene)
        time.sleep(chance.uniform(*fault.hold_s))
        end()
        self.until_well(fault.name)
        elections = self.group.epoch - epoch
        ended = time.monotonic()
        self.rounds.append(Round(fault.name, began, ended, elections, epoch, fault.wipes))

    def until_well(self, after: str) -> None:
        """Until all three are in sync, and what each client sends from now on is acknowledged."""
        until_sync(self.group.is_whole, f"all in sync after: {after}", timeout_s=RECOVERY_S)
        since = time.monotonic()
        for name in self.clients:
            until_sync(
                lambda name=name: self._acknowledged(name, since) >= SENDS,  # type: ignore[misc]
                f"{name} sends after: {after}",
                timeout_s=RECOVERY_S,
            )

    def end_of_sending(self) -> None:
        for client in self.clients.values():
            client.end_of_sending()
        for name, client in self.clients.items():
            until_sync(
                lambda client=client: _ended(client),  # type: ignore[misc]
                f"{name} sends nothing more",
                timeout_s=RECOVERY_S,
            )

    def until_received(self, stored: Sequence[Report]) -> None:
        """Until each client has received what is stored of its sends."""
        for name, client in self.clients.items():
            sent = {one["key"] for one in stored if one["key"].startswith(f"{name}-")}
            until_sync(
                lambda client=client, sent=sent: _received(client, sent),  # type: ignore[misc]
                f"{name} received all",
                timeout_s=RECOVERY_S,
            )

    def _acknowledged(self, client: str, since: float) -> int:
        """Sends that began since then."""
        recent = takewhile(lambda one: one["at"] > since, reversed(self.clients[client].refresh()))
        return sum(1 for one in recent if one["event"] == "acknowledged" and one["began"] > since)


def _ended(client: LoadProcess | SdkLoad) -> bool:
    return any(one["event"] == "sending ended" for one in client.refresh())


def _received(client: LoadProcess | SdkLoad, sent: set[str]) -> bool:
    """Raises AssertionError when not yet."""
    missing = sent - {one["key"] for one in client.refresh() if one["event"] == "received"}
    assert not missing, f"{len(missing)} of {len(sent)} were not received, such as {min(missing)}"
    return True


def lived(
    seed: int,
    mode: str,
    faults: Sequence[Fault],
    path: Path,
    sdk: OfficialSdk | None,
    *,
    module: str = "aerobee_broker",
) -> History:
    """A history of these faults. `mode`: the brokerRole; slaves are read in every second history.
    `sdk`: sends and receives beside the Python client. `module`: what the brokers run. Raises
    TimeoutError where something does not work again."""
    chance = random.Random(seed)
    reads = f"slaveReadEnable={str(chance.random() < 0.5).lower()}"
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        group = Group(path, network, stack, module)
        try:
            group.start(
                *(mode, reads),
                small_disks=any(fault.small_disks for fault in faults),
                clocks=any(fault.clocks for fault in faults),
            )
            run = Run(group, *clients(group, seed, path, sdk, stack))
            watch = stack.enter_context(reader("watch", group, seed, path))
            run.until_well("the start")
            for fault in faults:
                run.round(fault, chance)
                time.sleep(CALM_S)
            run.end_of_sending()
            with reader("read", group, seed, path) as reading:
                found = reading.wait()
            stored = [one for one in found if one["event"] == "stored"]
            diverged = [one for one in found if one["event"] == "diverged"]
            run.until_received(stored)
            logs_differ = group.end()
        finally:
            for broker in group.brokers:
                (path / f"{broker.host}.log").write_text(broker.member.process.output)
            (path / "proxy.log").write_text(group.proxy.output)
        reported = {name: list(client.refresh()) for name, client in run.clients.items()}
        behind = watch.refresh()
    return History(mode, run.rounds, reported, stored, diverged, behind, logs_differ)


def clients(
    group: Group, seed: int, path: Path, official: OfficialSdk | None, stack: ExitStack
) -> tuple[LoadProcess, SdkLoad | None]:
    """That work, once there are topics and groups."""
    enter, namesrv = group.network.enter, group.namesrv
    with reader("prepare", group, seed, path) as prepare:
        prepare.wait()
    history = path / "python.jsonl"
    python = stack.enter_context(LoadProcess("work", namesrv, seed, history, enter(CLIENT)))
    if official is None:
        return python, None
    proxy = f"{group.network.addresses[PROXY]}:{PROXY_PORT}"
    load = SdkLoad(official, proxy, path, path / "sdk.jsonl", enter(SDK_CLIENT))
    return python, stack.enter_context(load)


def reader(role: str, group: Group, seed: int, path: Path) -> LoadProcess:
    """A role of `load.py` on a host that no fault cuts off."""
    enter = group.network.enter(READER)
    return LoadProcess(role, group.namesrv, seed, path / f"{role}.jsonl", enter)
