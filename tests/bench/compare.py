"""What Aerobee and other message queues cost while they do nothing: start-up, memory, processor.

PYTHONPATH=tests .venv/bin/python -m bench.compare
PYTHONPATH=tests .venv/bin/python -m bench.compare --rocketmq DIR    # a folder of its jars

Products that are not installed are left out. Each is started in an empty directory, on ports of its
own, durable as far as it has an option for it, else with the defaults of its package.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measure import resident_mb
from support.processes.command import children

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
# The heap of RocketMQ's own scripts is 4 GB for the name server and 8 GB for the broker, touched at
# the start; with this bound a JVM takes what it needs.
JVM_OPTIONS = (
    "-Xmx1g",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)


@dataclass(frozen=True)
class Figures:
    """The least of all rounds each, of all processes together."""

    product: str
    start_s: float  # from the first process to an open port
    start_cpu_s: float  # processor time until then
    memory_mb: float  # resident
    idle_cpu_percent: float  # of one core


class Processes:
    """Processes of one product in one directory; ended, with what they started, on leaving."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str | Path, **environment: str) -> None:
        with (self.directory / "output.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, env=os.environ | environment,
            )  # fmt: skip
        self._started.append(process)
        self._stack.callback(self._end, process)

    def wait_for(self, port: int) -> None:
        """Until `port` takes connections. Raises RuntimeError."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.005)
        log = (self.directory / "output.log").read_text(errors="replace")
        raise RuntimeError(f"nothing listens on port {port}:\n{log[-2000:]}")

    def pids(self) -> list[int]:
        """All of them, and all that they started."""
        found = [process.pid for process in self._started]
        for pid in found:
            found += children(pid)
        return found

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Distinct ones, which nobody has at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


# ---- the products: each starts its processes and returns when clients can connect ----


def aerobee(processes: Processes) -> None:
    """Name server, broker and proxy."""
    ports = dict(zip(("namesrv", "broker", "proxy"), free_ports(3), strict=True))
    options = (f"--{name}-port={port}" for name, port in ports.items())
    processes.start(sys.executable, "-m", "aerobee_cli", "up", "--data", "data", *options)
    for port in ports.values():
        processes.wait_for(port)


def nats(processes: Processes) -> None:
    """With JetStream, its durable streams."""
    [port] = free_ports(1)
    processes.start("nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", "data")
    processes.wait_for(port)


def rabbitmq(processes: Processes) -> None:
    """One node, without plugins; and the daemon of Erlang that tells where nodes are."""
    port, distribution, daemon = free_ports(3)
    processes.start("epmd", "-address", "127.0.0.1", "-port", str(daemon))
    processes.wait_for(daemon)
    home = str(processes.directory)
    processes.start(
        RABBITMQ,
        HOME=home, ERL_EPMD_PORT=str(daemon), RABBITMQ_NODENAME="compare@localhost",
        RABBITMQ_NODE_IP_ADDRESS="127.0.0.1", RABBITMQ_NODE_PORT=str(port),
        RABBITMQ_DIST_PORT=str(distribution), RABBITMQ_MNESIA_BASE=f"{home}/data",
        RABBITMQ_LOG_BASE=f"{home}/log", RABBITMQ_ENABLED_PLUGINS_FILE=f"{home}/plugins",
    )  # fmt: skip
    processes.wait_for(port)


def rocketmq(jars: Path) -> Callable[[Processes], None]:
    """Name server, broker and proxy from a folder of jars, each once the one before listens."""

    def start(processes: Processes) -> None:
        home = processes.directory
        namesrv, broker, ha, remoting, grpc = free_ports(5)
        (home / "namesrv.conf").write_text(f"listenPort={namesrv}\n")
        (home / "broker.conf").write_text(
            f"listenPort={broker}\nhaListenPort={ha}\nbrokerIP1=127.0.0.1\nbrokerName=broker-a\n"
            f"storePathRootDir={home}/store\nflushDiskType=SYNC_FLUSH\n"
        )
        proxy = {"grpcServerPort": grpc, "remotingListenPort": remoting}
        cluster = {"rocketMQClusterName": "DefaultCluster"}
        (home / "proxy.json").write_text(json.dumps(proxy | cluster))
        homes = (f"-Drocketmq.home.dir={home}", f"-Duser.home={home}")
        java = ("java", *JVM_OPTIONS, *homes, "-cp", f"{jars.resolve()}/*")
        address = ("-n", f"127.0.0.1:{namesrv}")
        main = "org.apache.rocketmq"
        processes.start(*java, f"{main}.namesrv.NamesrvStartup", "-c", "namesrv.conf")
        processes.wait_for(namesrv)
        processes.start(*java, f"{main}.broker.BrokerStartup", *address, "-c", "broker.conf")
        processes.wait_for(broker)
        processes.start(*java, f"{main}.proxy.ProxyStartup", *address, "-pc", "proxy.json")
        processes.wait_for(grpc)

    return start


# ---- measuring ----


def cpu_s(pids: list[int]) -> float:
    """Processor time that these processes have used."""
    # The name of a process, in brackets, may hold blanks; user and system time are 14 and 15.
    times = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in times) / TICKS_PER_S


@contextmanager
def running(start: Callable[[Processes], None]) -> Iterator[tuple[Processes, float]]:
    """A product in an empty directory, and the seconds that it took to listen."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, ExitStack() as stack:
        processes = Processes(Path(directory), stack)
        begin = time.perf_counter()
        start(processes)
        yield processes, time.perf_counter() - begin


def measured(
    product: str, start: Callable[[Processes], None], *, rounds: int, settle_s: float, idle_s: float
) -> Figures:
    """`settle_s` after it listens, the processor time of the next `idle_s`, then the memory."""
    found: list[tuple[float, float, float, float]] = []
    for _ in range(rounds):
        with running(start) as (processes, start_s):
            start_cpu_s = cpu_s(processes.pids())
            time.sleep(settle_s)
            pids = processes.pids()
            before = cpu_s(pids)
            time.sleep(idle_s)
            idle_percent = 100 * (cpu_s(pids) - before) / idle_s
            found.append((start_s, start_cpu_s, sum(map(resident_mb, pids)), idle_percent))
    return Figures(product, *(min(column) for column in zip(*found, strict=True)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rocketmq", type=Path, metavar="DIR", help="folder with RocketMQ's jars")
    parser.add_argument("--only", default="", help="products, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settle-s", type=float, default=10, help="wait before it counts as idle")
    parser.add_argument("--idle-s", type=float, default=30, help="measure the processor so long")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    products: dict[str, Callable[[Processes], None]] = {"aerobee": aerobee}
    if arguments.rocketmq:
        products["rocketmq"] = rocketmq(arguments.rocketmq)
    if RABBITMQ.exists():
        products["rabbitmq"] = rabbitmq
    if shutil.which("nats-server"):
        products["nats"] = nats
    wanted = set(arguments.only.split(",")) if arguments.only else products.keys()
    table = Table("product", "start, s", "CPU of it, s", "memory, MB", "idle CPU, % of a core")
    for product, start in products.items():
        if product in wanted:
            found = measured(
                product, start, rounds=arguments.rounds, settle_s=arguments.settle_s,
                idle_s=arguments.idle_s,
            )  # fmt: skip
            table.add_row(
                product, f"{found.start_s:.2f}", f"{found.start_cpu_s:.2f}",
                f"{found.memory_mb:.0f}", f"{found.idle_cpu_percent:.1f}",
            )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
