"""The faults of a history. Each is begun on a running group and returns what ends it.

A fault hits the master of the moment when its round begins, or one of its slaves. What ends it
leaves every host connected and every process running, so that the group must become whole again.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fault.replication.namespaces.group import (
    BROKERS,
    CLIENT,
    ETCD,
    NAMESRVS,
    PROXY,
    SDK_CLIENT,
    Broker,
    Group,
    in_parallel,
)
from support.clock.polling import until_sync
from support.processes.broker_group import Member
from support.processes.network_namespaces import Network

End = Callable[[], None]
SLOW_BYTES_PER_S = 8_000
HOUR_S = 3_600
CLIENTS = (CLIENT, SDK_CLIENT, PROXY, *NAMESRVS)


@dataclass(frozen=True)
class Scene:
    """Who is who when a round begins. `slave`: the one that faults of a slave hit."""

    group: Group
    master: Broker
    slave: Broker
    chance: random.Random

    def broker(self, role: str) -> Broker:
        return self.master if role == "master" else self.slave


@dataclass(frozen=True)
class Fault:
    """`hold_s`: for how long it lasts, at least and at most. `hits`: "master", "slave" or another
    part. `small_disks`, `clocks`: what it needs, as in Group.start. `wipes`: a disk is lost."""

    name: str
    begin: Callable[[Scene], End]
    hits: str
    hold_s: tuple[float, float] = (0.5, 6.0)
    small_disks: bool = False
    clocks: bool = False
    wipes: bool = False


def scene_of(group: Group, chance: random.Random) -> Scene:
    """Waits for a master."""
    master = until_sync(lambda: group.master, "a broker leads", timeout_s=60)
    assert master is not None
    slaves = [broker for broker in group.brokers if broker is not master]
    return Scene(group, master, chance.choice(slaves), chance)


# ---- processes ----


def killed(role: str, scene: Scene) -> End:
    member = scene.broker(role).member
    member.process.kill()
    return lambda: restart(member)


def stopped(role: str, scene: Scene) -> End:
    member = scene.broker(role).member
    member.process.stop()
    return lambda: restart(member)


def restart(*members: Member) -> None:
    """At once."""
    in_parallel(*(member.start for member in members))


def frozen(role: str, scene: Scene) -> End:
    process = scene.broker(role).member.process
    process.send_signal(signal.SIGSTOP)
    return partial(process.send_signal, signal.SIGCONT)


def all_killed(scene: Scene) -> End:
    members = [broker.member for broker in scene.group.brokers]
    in_parallel(*(member.process.kill for member in members))
    return lambda: restart(*members)


def disk_lost(role: str, scene: Scene) -> End:
    """It comes back empty, under its old id."""
    member = scene.broker(role).member
    member.process.kill()
    for path in member.data.iterdir():
        shutil.rmtree(path)
    return lambda: restart(member)


def machine_lost(role: str, scene: Scene) -> End:
    """Nobody is told: connections to it stay half-open."""
    broker, network = scene.broker(role), scene.group.network
    network.unplug(broker.host)
    broker.member.process.kill()

    def end() -> None:
        network.plug(broker.host)
        restart(broker.member)

    return end


def namesrv_killed(scene: Scene) -> End:
    process = scene.chance.choice(list(scene.group.namesrvs.values()))
    process.kill()
    return lambda: in_parallel(process.start)


def namesrv_lost(scene: Scene) -> End:
    """Its machine: nobody is told."""
    host, network = scene.chance.choice(NAMESRVS), scene.group.network
    network.unplug(host)
    return partial(network.plug, host)


# ---- etcd ----


def etcd_leader_killed(scene: Scene) -> End:
    member = scene.group.etcd[scene.group.etcd_leader]
    member.kill()
    return member.launch


def etcd_away(scene: Scene) -> End:
    network = scene.group.network
    for host in ETCD:
        network.unplug(host)

    def end() -> None:
        for host in ETCD:
            network.plug(host)

    return end


# ---- what goes back in time ----


def older_disk_first(role: str, scene: Scene) -> End:
    """A copy of its store is from before; all are killed, and it starts first with the copy."""
    group, broker = scene.group, scene.broker(role)
    member, copy = broker.member, group.path / f"{broker.host}.copy"
    member.process.stop()
    shutil.copytree(member.data, copy)
    restart(member)
    until_sync(group.is_whole, "all in sync before the copy is put back", timeout_s=60)

    def end() -> None:
        in_parallel(*(each.member.process.kill for each in group.brokers))
        for path in member.data.iterdir():
            shutil.rmtree(path)
        shutil.copytree(copy, member.data, dirs_exist_ok=True)
        shutil.rmtree(copy)
        start_first(scene, broker)

    return end


def start_first(scene: Scene, broker: Broker) -> None:
    """The others follow 1 to 3 s later."""
    restart(broker.member)
    time.sleep(scene.chance.uniform(1, 3))
    restart(*(each.member for each in scene.group.brokers if each is not broker))


def etcd_replaced(scene: Scene, older: Mapping[str, Path] | None = None) -> None:
    """All of it is empty, or has older data."""
    members = scene.group.etcd
    for member in members.values():
        member.kill()
    for host, member in members.items():
        member.remove_data(None if older is None else older[host])
    for member in members.values():
        member.launch()  # brokers ask until it answers


def etcd_wiped_while_off(scene: Scene) -> End:
    """A slave that was out of the set starts first."""
    scene.slave.member.process.kill()

    def end() -> None:
        in_parallel(*(each.member.process.kill for each in scene.group.brokers))
        etcd_replaced(scene)
        start_first(scene, scene.slave)

    return end


def etcd_wiped_while_alive(scene: Scene) -> End:
    etcd_replaced(scene)
    return lambda: None


def etcd_older_while_alive(scene: Scene) -> End:
    """From before a slave left the set."""
    copies = {host: scene.group.path / f"{host}.copy" for host in ETCD}
    for member in scene.group.etcd.values():
        member.kill()
    for host, member in scene.group.etcd.items():
        member.copy_data(copies[host])
    for member in scene.group.etcd.values():
        member.launch()
    scene.slave.member.process.kill()

    def end() -> None:
        etcd_replaced(scene, copies)
        for copy in copies.values():
            shutil.rmtree(copy)
        restart(scene.slave.member)

    return end


def damaged_first(size: int, write: Callable[[Path, int], None], scene: Scene) -> End:
    """All are killed; the log of a slave is damaged before its end, and it starts first.

    `size`: the bytes that are damaged, up to the log's end.
    """

    def end() -> None:
        in_parallel(*(each.member.process.kill for each in scene.group.brokers))
        log = scene.slave.member.store / "commitlog"
        last = max(
            (path for path in log.iterdir() if path.read_bytes().rstrip(b"\0")),
            key=lambda path: path.name,
        )
        used = len(last.read_bytes().rstrip(b"\0"))
        write(last, max(0, used - size))
        start_first(scene, scene.slave)

    return end


def zero(path: Path, begin: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(path.stat().st_size - begin))


def truncate(path: Path, begin: int) -> None:
    with path.open("r+b") as file:
        file.truncate(begin)


def flip(path: Path, begin: int) -> None:
    """Three bytes."""
    with path.open("r+b") as file:
        file.seek(begin)
        found = file.read(3)
        file.seek(begin)
        file.write(bytes(byte ^ 0xFF for byte in found))


# ---- the network ----


def cut(network: Network, pairs: Sequence[tuple[str, str]]) -> End:
    """Each pair from its first to its second host."""
    for source, target in pairs:
        network.cut(source, target)

    def end() -> None:
        for source, target in pairs:
            network.join(source, target)

    return end


def between(one: Iterable[str], other: Sequence[str]) -> list[tuple[str, str]]:
    """All pairs, both ways."""
    pairs = [(source, target) for source in one for target in other]
    return [*pairs, *((target, source) for source, target in pairs)]


def broken_link(others: str, ways: str, scene: Scene) -> End:
    """The master from a slave, or from all etcd. `ways`: "both", "to" them or "from" them."""
    hosts = ETCD if others == "etcd" else (scene.slave.host,)
    to = [(scene.master.host, host) for host in hosts]
    back = [(host, scene.master.host) for host in hosts]
    return cut(scene.group.network, {"both": [*to, *back], "to": to, "from": back}[ways])


def isolated(side: str, scene: Scene) -> End:
    """The master from its slaves and etcd. `side`: clients and name servers reach only the
    "master", or only the "others"."""
    master = scene.master.host
    slaves = [host for host in BROKERS if host != master]
    away_from = slaves if side == "master" else [master]
    pairs = [*between([master], [*slaves, *ETCD]), *between(CLIENTS, away_from)]
    return cut(scene.group.network, pairs)


def slowed(role: str, scene: Scene) -> End:
    network, host = scene.group.network, scene.broker(role).host
    network.slow(host, SLOW_BYTES_PER_S)
    return partial(network.fast, host)


# ---- disks and clocks ----


def syncs(role: str, effect: str, scene: Scene) -> End:
    """Each `fdatasync` of a broker: `effect` is what strace injects. A broker whose sync failed is
    started again, as by its supervisor."""
    member = scene.broker(role).member
    tracer = subprocess.Popen(
        [
            *("strace", "--follow-forks", "--quiet=all", f"--attach={member.process.pid}"),
            *("--trace=fdatasync", f"--inject=fdatasync:{effect}", "--output=/dev/null"),
        ],
        stdin=subprocess.DEVNULL,
    )

    def end() -> None:
        tracer.terminate()
        tracer.wait()
        if effect.startswith("error"):
            member.process.kill()
            restart(member)

    return end


def disk_full(role: str, scene: Scene) -> End:
    """To the last byte."""
    filler = scene.broker(role).member.data / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return filler.unlink


def clock_moved(role: str, hours: int, scene: Scene) -> End:
    broker = scene.broker(role)
    broker.move_clock(hours * HOUR_S)
    return partial(broker.move_clock, 0)


# ---- all of them ----


def two_at_once(scene: Scene) -> End:
    """One of the master, and one of a slave or of etcd."""
    of_master = scene.chance.choice([fault for fault in PLAIN if fault.hits == "master"])
    other = scene.chance.choice([fault for fault in PLAIN if fault.hits != "master"])
    print(f"at once: {of_master.name}, {other.name}")
    ends = [fault.begin(scene) for fault in (of_master, other)]

    def end() -> None:
        for each in ends:
            each()

    return end


def of_roles(name: str, begin: Callable[[str, Scene], End], **more: Any) -> list[Fault]:
    """The same of the master and of a slave."""
    return [
        Fault(name.format(role), partial(begin, role), role, **more) for role in ("master", "slave")
    ]


LONG = (3.0, 12.0)
# Any two of these may be there at once.
PLAIN = (
    *of_roles("kill -9 of the {}", killed),
    *of_roles("SIGTERM to the {}", stopped),
    *of_roles("SIGSTOP of the {}, 1 to 20 s", frozen, hold_s=(1.0, 20.0)),
    *of_roles("machine of the {} lost", machine_lost, hold_s=LONG),
    Fault("kill -9 of a name server", namesrv_killed, "others"),
    Fault("machine of a name server lost", namesrv_lost, "others", LONG),
    Fault("kill -9 of etcd's leader", etcd_leader_killed, "others", LONG),
    Fault("all etcd unavailable for 30 s", etcd_away, "others", (30.0, 30.0)),
    Fault("master | slave", partial(broken_link, "slave", "both"), "others", LONG),
    Fault("master | etcd", partial(broken_link, "etcd", "both"), "others", LONG),
)
# Disks and etcd go back in time, and logs are damaged.
BACK = (
    Fault("slave first, with an older disk", partial(older_disk_first, "slave"), "all", wipes=True),
    Fault(
        "master first, with an older disk", partial(older_disk_first, "master"), "all", wipes=True
    ),
    Fault("etcd wiped, brokers off", etcd_wiped_while_off, "all", LONG),
    Fault("etcd wiped under the group", etcd_wiped_while_alive, "others"),
    Fault("older etcd under the group", etcd_older_while_alive, "all", LONG),
    Fault("slave first, 300 kB of its log zeroed", partial(damaged_first, 300_000, zero), "all"),
    Fault("slave first, 300 kB of its log cut", partial(damaged_first, 300_000, truncate), "all"),
    Fault("slave first, 3 bytes of its log flipped", partial(damaged_first, 20_000, flip), "all"),
)
FAULTS = (
    *PLAIN,
    *BACK,
    Fault("kill -9 of all three brokers", all_killed, "all"),
    *of_roles("{} back with an empty disk", disk_lost, wipes=True),
    Fault("master → slave cut, one way", partial(broken_link, "slave", "to"), "network", LONG),
    Fault("slave → master cut, one way", partial(broken_link, "slave", "from"), "network", LONG),
    Fault("master → etcd cut, one way", partial(broken_link, "etcd", "to"), "network", LONG),
    Fault("etcd → master cut, one way", partial(broken_link, "etcd", "from"), "network", LONG),
    Fault("master + clients | slaves + etcd", partial(isolated, "master"), "network", LONG),
    Fault("master | slaves + etcd + clients", partial(isolated, "others"), "network", LONG),
    *of_roles("{} gets 8 KB/s", slowed, hold_s=LONG),
    *of_roles("fdatasync of the {} fails", lambda role, scene: syncs(role, "error=EIO", scene)),
    *of_roles(
        "fdatasync of the {} takes 1 s",
        lambda role, scene: syncs(role, "delay_exit=1000000", scene),
        hold_s=LONG,
    ),
    *of_roles("disk of the {} full", disk_full, hold_s=LONG, small_disks=True),
    *of_roles(
        "clock of the {} + 1 h", lambda role, scene: clock_moved(role, 1, scene), clocks=True
    ),
    *of_roles(
        "clock of the {} - 1 h", lambda role, scene: clock_moved(role, -1, scene), clocks=True
    ),
    Fault("two of these at once", two_at_once, "all", LONG),
)
