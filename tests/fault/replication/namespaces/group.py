"""What a history runs on: three brokers, three etcd, two name servers and a proxy, each on a host
of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fault.replication.namespaces.load import BROKER
from support.etcd.etcd_process import EtcdMember
from support.processes.broker_group import Member
from support.processes.network_namespaces import Network
from support.processes.service import ServiceProcess

MODES = {
    "SYNC_MASTER": ("brokerRole=SYNC_MASTER", "inSyncReplicas=2"),
    "ASYNC_MASTER": ("brokerRole=ASYNC_MASTER",),
}
COMMON = (
    "totalReplicas=3",
    "mappedFileSizeConsumeQueue=20000",
    "maxHashSlotNum=5000",
    "maxIndexNum=20000",
    # What is acknowledged is to be there in the end, also after the disk was full.
    "cleanFileForciblyEnable=false",
)
ETCD = ("etcd1", "etcd2", "etcd3")
NAMESRVS = ("namesrv1", "namesrv2")
BROKERS = ("broker1", "broker2", "broker3")
PROXY, CLIENT, SDK_CLIENT, READER = "proxy", "client", "sdk", "reader"
ETCD_PORT, PEER_PORT, NAMESRV_PORT, PROXY_PORT = 2379, 2380, 9876, 8081
SMALL_DISK = "192m"


def clock_library() -> Path:
    """libfaketime. Raises AssertionError where it is not installed."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    assert found, "there is no libfaketime (on Debian: apt-get install faketime)"
    return found[0]


@dataclass(frozen=True)
class Broker:
    """One of the group, and its host. `clock`: the file that says how far its clock is off."""

    host: str
    member: Member
    clock: Path

    def move_clock(self, seconds: int) -> None:
        """Its wall clock is off by as much from now on; its process notices within a second."""
        self.clock.write_text(f"{seconds:+d}\n")

    @property
    def epoch(self) -> int:
        """Of the role that it took last, in this run; 0: none."""
        taken = self.member.events_now("role_taken")
        return int(taken[-1]["epoch"]) if taken else 0


class Group:
    """Starts in `start`, and ends with the stack. `module`: what its brokers run."""

    def __init__(
        self, path: Path, network: Network, stack: ExitStack, module: str = "aerobee_broker"
    ) -> None:
        self.path = path
        self.network = network
        self._stack = stack
        self._module = module
        for host in (*ETCD, *NAMESRVS, *BROKERS, PROXY, CLIENT, SDK_CLIENT, READER):
            network.add(host)
        at = network.addresses
        self.namesrv = ";".join(f"{at[host]}:{NAMESRV_PORT}" for host in NAMESRVS)
        cluster = ",".join(f"{host}=http://{at[host]}:{PEER_PORT}" for host in ETCD)
        ports = (ETCD_PORT, PEER_PORT)
        self.etcd = {
            host: EtcdMember(path, host, ports, cluster, host=at[host], prefix=network.enter(host))
            for host in ETCD
        }
        self.namesrvs = {
            host: self._service(host, "namesrv", NAMESRV_PORT, "--data", str(path / host))
            for host in NAMESRVS
        }
        self.proxy = self._service(PROXY, "proxy", PROXY_PORT, "--namesrv", self.namesrv)
        self.brokers: list[Broker] = []

    def start(self, mode: str, *settings: str, small_disks: bool, clocks: bool) -> None:
        """`mode`: the brokerRole. `settings`: further options of the brokers. `small_disks`: each
        broker has a disk of 192 MiB in memory. `clocks`: each has a wall clock of its own."""
        at = self.network.addresses
        endpoints = ",".join(f"{at[host]}:{ETCD_PORT}" for host in ETCD)
        keys = (*MODES[mode], *COMMON, f"etcdEndpoints={endpoints}", *settings)
        for number, host in enumerate(BROKERS, 1):
            self.brokers.append(self._broker(number, host, keys, small_disks, clocks))
        for member in self.etcd.values():
            self._stack.callback(member.kill)
            member.launch()
        services = [*self.namesrvs.values(), self.proxy]
        services += [broker.member.process for broker in self.brokers]
        for service in services:
            self._stack.callback(service.kill)
        in_parallel(
            *(service.start for service in (*self.namesrvs.values(), self.proxy)),
            *(broker.member.start for broker in self.brokers),
        )

    def end(self) -> str:
        """Kills the slaves, then the master; returns of which slave the log is no beginning of the
        master's, or ""."""
        master = self.master
        assert master is not None, "nobody leads"
        slaves = [broker for broker in self.brokers if broker is not master]
        for broker in (*slaves, master):
            broker.member.process.kill()
        whole = master.member.log()
        wrong = [each.host for each in slaves if not whole.startswith(each.member.log())]
        return f"the logs of {wrong} are not that of {master.host}" if wrong else ""

    # ---- who is what ----

    @property
    def master(self) -> Broker | None:
        """By what the brokers that run have said last: the one that leads in the newest epoch."""
        leading = [broker for broker in self.brokers if broker.member.leads_now()]
        return max(leading, key=lambda broker: broker.epoch, default=None)

    @property
    def epoch(self) -> int:
        """The newest that a broker has led in."""
        return max(
            (
                int(taken["epoch"])
                for broker in self.brokers
                for taken in broker.member.process.events("role_taken")
                if taken["role"] == "master"
            ),
            default=0,
        )

    def is_whole(self) -> bool:
        """Whether there is a master, and all three are in its set."""
        master = self.master
        if master is None:
            return False
        changes = master.member.events_now("in_sync_set_changed")
        return bool(changes) and len(changes[-1]["members"]) == len(self.brokers)

    @property
    def etcd_leader(self) -> str:
        """Its host."""
        return max(self.etcd, key=lambda host: self.etcd[host].led_term)

    # ---- parts ----

    def _service(self, host: str, service: str, port: int, *arguments: str) -> ServiceProcess:
        return ServiceProcess(
            f"aerobee_{service}",
            *(
                "--host",
                self.network.addresses[host],
                "--insecure",
                "--port",
                str(port),
                *arguments,
            ),
            prefix=self.network.enter(host),
        )

    def _broker(
        self, number: int, host: str, keys: tuple[str, ...], small_disk: bool, clock: bool
    ) -> Broker:
        data, rate = self.path / host, self.path / f"{host}.clock"
        data.mkdir()
        if small_disk:
            mounted = ("-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(data))
            subprocess.run(("mount", *mounted), check=True, capture_output=True)
            self._stack.callback(
                subprocess.run, ("umount", "--lazy", str(data)), check=True, capture_output=True
            )
        env = {}
        if clock:
            env = {
                "LD_PRELOAD": str(clock_library()),
                "FAKETIME_TIMESTAMP_FILE": str(rate),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        member = Member(
            data,
            number,
            self.namesrv,
            f"bindAddress={self.network.addresses[host]}",
            "insecure=true",
            *keys,
            name=BROKER,
            module=self._module,
            env=env,
            prefix=self.network.enter(host),
        )
        broker = Broker(host, member, rate)
        broker.move_clock(0)
        return broker


def in_parallel(*calls: Callable[[], object]) -> None:
    """Raises the first failure, after all have ended."""
    with ThreadPoolExecutor(len(calls)) as pool:
        for call in [pool.submit(call) for call in calls]:
            call.result()
