"""Start each product in an empty folder, on free ports of the loopback address.

Each is set so that a message is on the disk before its send is acknowledged.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from bench.peers import packages
from bench.peers.packages import Missing
from support.processes.command import children, is_alive

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
# The heap of RocketMQ's own scripts is 4 GB for the name server and 8 GB for the broker, touched at
# the start; with this bound, which is Kafka's own, a JVM takes what it needs.
JVM_OPTIONS = (
    "-Xmx1g",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)

Address = dict[str, Any]  # what a client needs to find its server


class Processes:
    """Processes of one product in one folder; ended, with those that they started, on leaving."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        everything = self.pids()
        for process in reversed(self._started):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        for pid in everything:  # their folder goes, so what they would still write is lost anyway
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()

    def start(self, *command: str | Path, **environment: str) -> None:
        with (self.folder / "output.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, env=os.environ | environment,
            )  # fmt: skip
        self._started.append(process)

    def run(self, *command: str | Path, **environment: str) -> None:
        """Run a command to its end. Raises RuntimeError."""
        done = subprocess.run(
            command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env=os.environ | environment, check=False, timeout=START_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def wait_for(self, port: int) -> None:
        """Wait until `port` accepts connections. Raises RuntimeError."""

        def is_open() -> bool:
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        self.wait_until(is_open, f"nothing listens on port {port}")

    def wait_until(self, condition: Callable[[], bool], failure: str) -> None:
        """Wait until `condition` holds. Raises RuntimeError with the output of the processes."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            is_over = any(process.poll() is not None for process in self._started)
            if is_over or time.monotonic() > deadline:
                raise RuntimeError(f"{failure}:\n{self._output()[-2000:]}")
            time.sleep(0.005)

    def _output(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")

    def pids(self) -> list[int]:
        """Return the ids of all processes, with those that they started."""
        found: list[int] = []
        pending = [process.pid for process in self._started if process.poll() is None]
        while pending:
            pid = pending.pop()
            with contextlib.suppress(FileNotFoundError):  # it has ended
                pending += children(pid)
                found.append(pid)
        return found


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are unused at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Product(ABC):
    """A product that is measured. Its clients are modules of bench.peers.clients."""

    title: str
    durability: str  # the settings that put a message on the disk before it is acknowledged
    clients: tuple[str, ...]

    def bring(self) -> None:  # noqa: B027  # not each product needs packages
        """Download and install the product. Raises Missing."""

    def prepare(self, processes: Processes) -> None:  # noqa: B027
        """Prepare a new folder, before the start is timed."""

    @abstractmethod
    def start(self, processes: Processes) -> Address:
        """Start the processes; return when their ports are open."""

    @abstractmethod
    def version(self) -> str: ...

    @contextlib.contextmanager
    def running(self) -> Iterator[tuple[Processes, Address, float]]:
        """Run the product in an empty folder of build/, and yield the time of its start."""
        parent = packages.BUILD / "data"
        parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as folder,
            Processes(Path(folder)) as processes,
        ):
            self.prepare(processes)
            began = time.perf_counter()
            yield processes, self.start(processes), began


class Aerobee(Product):
    title = "Aerobee"
    durability = "flushDiskType=SYNC_FLUSH (the default): fdatasync for each group of sends"
    clients = ("aerobee", "lean_v2")

    def start(self, processes: Processes) -> Address:
        """Start name server, broker and proxy, each a process of its own."""
        ports = dict(zip(("namesrv", "broker", "proxy", "console"), free_ports(4), strict=True))
        options = (f"--{name}-port={port}" for name, port in ports.items())
        processes.start(sys.executable, "-m", "aerobee_cli", "up", "--data", "data", *options)
        for name in ("namesrv", "broker", "proxy"):
            processes.wait_for(ports[name])
        return {name: f"127.0.0.1:{port}" for name, port in ports.items()}

    def version(self) -> str:
        from aerobee_wire.version import VERSION

        return VERSION


class Nats(Product):
    title = "NATS"
    durability = "jetstream.sync_interval=always, storage=file"
    clients = ("nats",)

    def bring(self) -> None:
        """Raise Missing for a version before 2.10, which does not know `always`."""
        self._program = packages.python().parent / "nats-server"
        if tuple(int(part) for part in self.version().split(".")[:2]) < (2, 10):
            raise Missing(f"nats-server {self.version()} has no sync_interval: 2.10 or newer has")

    def start(self, processes: Processes) -> Address:
        [port] = free_ports(1)
        (processes.folder / "nats.conf").write_text(
            f"listen: 127.0.0.1:{port}\n"
            'jetstream { store_dir: "data", sync_interval: always, max_file_store: 20G }\n'
        )
        processes.start(self._program, "-c", "nats.conf")
        processes.wait_for(port)
        return {"server": f"nats://127.0.0.1:{port}"}

    def version(self) -> str:
        return _first_line(self._program, "--version").rpartition("v")[2]


class RabbitMq(Product):
    title = "RabbitMQ"
    durability = "quorum queue, persistent messages, publisher confirms: fdatasync of the Raft log"
    clients = ("rabbitmq",)
    _place = "/usr/lib/rabbitmq/bin/rabbitmq-server"

    def bring(self) -> None:
        self._program = packages.debian("rabbitmq-server", self._place[1:])
        self._environment = packages.environment(self._program, self._place)
        if self._environment:
            self._relocate(Path(str(self._program).removesuffix(self._place)))

    def _relocate(self, root: Path) -> None:
        """Write an `erl` that comes first in PATH: Debian's has an absolute path in it."""
        erlang = root / "usr" / "lib" / "erlang"
        [bin_folder] = erlang.glob("erts-*/bin")
        erl = root / "programs" / "erl"
        erl.parent.mkdir(exist_ok=True)
        erl.write_text(
            f'#!/bin/sh\nexport ROOTDIR="{erlang}" BINDIR="{bin_folder}" EMU=beam PROGNAME=erl\n'
            'exec "$BINDIR/erlexec" "$@"\n'
        )
        erl.chmod(erl.stat().st_mode | stat.S_IXUSR)

    def start(self, processes: Processes) -> Address:
        """Start one node without plugins, and the daemon of Erlang that knows where nodes are."""
        port, distribution, daemon = free_ports(3)
        home = str(processes.folder)
        environment = self._environment | {"HOME": home, "ERL_EPMD_PORT": str(daemon)}
        epmd = Path(str(self._program).removesuffix(self._place), "usr/bin/epmd")
        processes.start(epmd, "-address", "127.0.0.1", "-port", str(daemon), **environment)
        processes.wait_for(daemon)
        processes.start(
            self._program,
            RABBITMQ_NODENAME="bench@localhost", RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
            RABBITMQ_NODE_PORT=str(port), RABBITMQ_DIST_PORT=str(distribution),
            RABBITMQ_MNESIA_BASE=f"{home}/data", RABBITMQ_LOG_BASE=f"{home}/log",
            RABBITMQ_ENABLED_PLUGINS_FILE=f"{home}/plugins", **environment,
        )  # fmt: skip
        processes.wait_for(port)
        return {"server": f"amqp://guest:guest@127.0.0.1:{port}/"}

    def version(self) -> str:
        root = Path(str(self._program).removesuffix(self._place))
        [folder] = (root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")
        return folder.name.partition("-")[2]


class Redis(Product):
    title = "Redis"
    durability = "appendonly yes, appendfsync always"
    clients = ("redis", "redis_callers")
    _place = "/usr/bin/redis-server"

    def bring(self) -> None:
        self._program = packages.debian("redis-server", self._place[1:])
        self._environment = packages.environment(self._program, self._place)

    def start(self, processes: Processes) -> Address:
        [port] = free_ports(1)
        processes.start(
            self._program, "--bind", "127.0.0.1", "--port", str(port), "--appendonly", "yes",
            "--appendfsync", "always", "--save", "", "--maxclients", "4096", **self._environment,
        )  # fmt: skip
        processes.wait_for(port)
        return {"port": port}

    def version(self) -> str:
        words = _first_line(self._program, "--version", **self._environment).split()
        [found] = (word[2:] for word in words if word.startswith("v="))
        return found


class Kafka(Product):
    title = "Kafka"
    durability = "log.flush.interval.messages=1, acks=all; one node in KRaft mode"
    clients = ("confluent", "aiokafka")

    def bring(self) -> None:
        self._jars = packages.jars("kafka")

    def prepare(self, processes: Processes) -> None:
        self._port, controller = free_ports(2)
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "log.dirs": str(processes.folder / "data"),
            "log.flush.interval.messages": "1",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        lines = (f"{key}={value}\n" for key, value in properties.items())
        (processes.folder / "server.properties").write_text("".join(lines))
        processes.run(
            *(*self._java(), "kafka.tools.StorageTool", "format", "--standalone"),
            *("-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", "server.properties"),
        )

    def start(self, processes: Processes) -> Address:
        processes.start(*self._java(), "kafka.Kafka", "server.properties")
        processes.wait_for(self._port)
        return {"server": f"127.0.0.1:{self._port}"}

    def version(self) -> str:
        return _version_of(self._jars, "kafka_2.13-")

    def _java(self) -> tuple[str, ...]:
        return ("java", *JVM_OPTIONS, "-cp", f"{self._jars}/*")


class RocketMq(Product):
    title = "RocketMQ"
    durability = "flushDiskType=SYNC_FLUSH; acknowledgements of messages are flushed later"
    clients = ("rocketmq", "lean_v2")
    # Of the bench: created beforehand, because the SDK cannot create any.
    topics = (
        *("ready", "warm", "send_1", "send_64", "send_1024", "drain", "push", "paced", "letters"),
        *("v2_send_1", "v2_send_8", "v2_send_64", "v2_drain_8", "v2_drain_64", "syncs"),
        *("%DLQ%letters", "v2_ready", "v2_warm"),
    )

    def bring(self) -> None:
        self._jars = packages.jars("rocketmq")

    def prepare(self, processes: Processes) -> None:
        config = processes.folder / "store" / "config"
        config.mkdir(parents=True)
        version = {"timestamp": 1, "counter": 1, "stateVersion": 0}
        table = {
            name: {
                "topicName": name, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
                "attributes": {},
            } for name in self.topics
        }  # fmt: skip
        (config / "topics.json").write_text(
            json.dumps({"dataVersion": version, "topicConfigTable": table})
        )
        # Three deliveries, the shortest delays that its scale has.
        letters = {
            "groupName": "letters", "consumeEnable": True, "consumeFromMinEnable": True,
            "consumeBroadcastEnable": True, "consumeMessageOrderly": False, "retryQueueNums": 1,
            "retryMaxTimes": 2, "brokerId": 0, "whichBrokerWhenConsumeSlowly": 1,
            "notifyConsumerIdsChangedEnable": True, "groupSysFlag": 0, "consumeTimeoutMinute": 15,
            "attributes": {}, "groupRetryPolicy": {
                "type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 1, 1]},
            },
        }  # fmt: skip
        (config / "subscriptionGroup.json").write_text(
            json.dumps({"dataVersion": version, "subscriptionGroupTable": {"letters": letters}})
        )

    def start(self, processes: Processes) -> Address:
        """Start name server, broker and proxy, each when the one before listens."""
        home = processes.folder
        namesrv, broker, ha, remoting, grpc = free_ports(5)
        (home / "namesrv.conf").write_text(f"listenPort={namesrv}\nbindAddress=127.0.0.1\n")
        (home / "broker.conf").write_text(
            f"listenPort={broker}\nhaListenPort={ha}\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\n"
            "bindAddress=127.0.0.1\nbrokerName=broker-a\n"
            f"storePathRootDir={home}/store\nflushDiskType=SYNC_FLUSH\n"
        )
        proxy = {"grpcServerPort": grpc, "remotingListenPort": remoting}
        cluster = {"rocketMQClusterName": "DefaultCluster"}
        (home / "proxy.json").write_text(json.dumps(proxy | cluster))
        homes = (f"-Drocketmq.home.dir={home}", f"-Duser.home={home}")
        java = ("java", *JVM_OPTIONS, *homes, "-cp", f"{self._jars}/*")
        address = ("-n", f"127.0.0.1:{namesrv}")
        main = "org.apache.rocketmq"
        processes.start(*java, f"{main}.namesrv.NamesrvStartup", "-c", "namesrv.conf")
        processes.wait_for(namesrv)
        processes.start(*java, f"{main}.broker.BrokerStartup", *address, "-c", "broker.conf")
        processes.wait_until(
            lambda: _is_registered(namesrv), "the broker did not register: a proxy ends without one"
        )
        processes.start(*java, f"{main}.proxy.ProxyStartup", *address, "-pc", "proxy.json")
        processes.wait_for(grpc)
        return {"proxy": f"127.0.0.1:{grpc}", "store": str(home / "store")}

    def version(self) -> str:
        return _version_of(self._jars, "rocketmq-broker-")


PRODUCTS: dict[str, type[Product]] = {
    "aerobee": Aerobee,
    "nats": Nats,
    "rabbitmq": RabbitMq,
    "redis": Redis,
    "kafka": Kafka,
    "rocketmq": RocketMq,
}


def _is_registered(namesrv: int) -> bool:
    """Return whether Apache's name server has a route of the cluster, by remoting.

    A frame has two lengths of four bytes, of the whole and of the header, and the header in JSON.
    """
    fields = {"topic": "DefaultCluster"}
    header = {"code": 105, "flag": 0, "language": "OTHER", "opaque": 1, "version": 0}
    request = json.dumps(header | {"extFields": fields}).encode()
    with socket.create_connection(("127.0.0.1", namesrv), START_TIMEOUT_S) as connection:
        lengths = (len(request) + 4).to_bytes(4, "big") + len(request).to_bytes(4, "big")
        connection.sendall(lengths + request)
        with connection.makefile("rb") as answer:
            answer.read(4)
            # The first byte says how the header is encoded: 0 is JSON.
            found = json.loads(answer.read(int.from_bytes(answer.read(4), "big") & 0xFFFFFF))
    return bool(found["code"] == 0)


def _first_line(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return done.stdout.splitlines()[0]


def _version_of(jars: Path, prefix: str) -> str:
    [jar] = jars.glob(f"{prefix}[0-9]*.jar")
    return jar.stem.removeprefix(prefix)
