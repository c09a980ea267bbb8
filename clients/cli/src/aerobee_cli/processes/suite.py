"""Run the services as child processes, for `aerobee up` and `aerobee demo`.

A `Suite` has one process for each service. The processes load at the same time, and then broker and
proxy wait for the address of the name server. A `OneProcessSuite` has one process for all three
services. `serve` runs either of them in the foreground.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aerobee_cli.errors import ProcessEnded
from aerobee_cli.output import wrapped
from aerobee_cli.processes.log_lines import LogFormat, writer_of
from aerobee_cli.processes.supervise import Child, LineSink, Stopped, StopSignals

NAMESRV = "namesrv"
BROKER = "broker"
PROXY = "proxy"
# A broker that ends more often than this is not started again.
MAX_RESTARTS = 5
AUTO_CREATION = (
    "topics are created by their first use; to create them by hand only: "
    "--set autoCreateTopicEnable=false"
)
CONNECT_S = 1.0
METRICS_PORTS = 5_570
# Keys that are set for each broker of the group. `--set` must not set them.
DECIDED = frozenset({"brokerId", "totalReplicas", "etcdEndpoints", "haMasterAddress"})


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a broker group.

    `copies` is the number of copies of each message, 1 for a broker without replicas. `etcd` is
    "H:P,H:P" for elections. If `etcd` is "", the first broker is the master until a promotion.
    """

    copies: int = 1
    etcd: str = ""

    def settings(self, number: int) -> list[str]:
        """Return the settings ("key=value") of one broker of the group. `number` starts at 0."""
        if self.copies == 1:
            return []
        found = [f"totalReplicas={self.copies}", "inSyncReplicas=2"]
        if number:  # the first broker exports metrics on the port of a single broker
            found.append(f"metricsPromExporterPort={METRICS_PORTS + number}")
        if self.copies == 2:
            found.append("enableAutoInSyncReplicas=true")
        if self.etcd:
            found += ["brokerRole=SYNC_MASTER", f"brokerId={number + 1}"]
            return [*found, f"etcdEndpoints={self.etcd}"]
        role = "SLAVE" if number else "SYNC_MASTER"
        return [*found, f"brokerRole={role}", f"brokerId={number}"]

    def check(self, sets: Sequence[str]) -> str:
        """Return the reason why an option of `--set` is refused with `--replicas`, or ""."""
        for item in sets:
            key = item.partition("=")[0].removeprefix("broker.")
            if self.copies > 1 and (key in DECIDED or key == "brokerRole"):
                return f"--set {key}: --replicas decides it for each broker"
        return ""

    @property
    def remark(self) -> str:
        """A remark about the durability and the elections of this group, for the user."""
        if self.copies == 1:
            return ""
        least = (
            "two copies: sends continue with one while a broker is down "
            "(enableAutoInSyncReplicas), and what is acknowledged then is on one disk"
            if self.copies == 2
            else f"{self.copies} copies: a send is acknowledged when all brokers in sync have it, "
            "two at least"
        )
        if self.etcd:
            return f"{least}; etcd at {self.etcd} decides who is master"
        return (
            f"{least}; without etcd there is no election: if the master is gone for good, "
            "aerobee broker promote BROKER"
        )


ONE_COPY = Replicas()


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """The options of a suite.

    `sets` are "key=value" for the broker, and "namesrv.key=value" and "proxy.key=value" for the
    other services. Port 0 means a free port. Further brokers of a group have the ports after
    `broker_port`. If `proxy_port` is None, there is no proxy. With `audited`, each service has an
    audit log below `data`, unless `sets` give it another one.
    """

    data: Path
    namesrv_port: int = 0
    broker_port: int = 0
    sets: Sequence[str] = ()
    proxy_port: int | None = None
    replicas: Replicas = ONE_COPY
    audited: bool = False

    @property
    def creates_topics(self) -> bool:
        """True if the first use of a topic creates it, according to `sets`."""
        return "autoCreateTopicEnable=false" not in self.sets

    def namesrv_arguments(self) -> list[str]:
        arguments = ["--port", str(self.namesrv_port), "--data", str(self.data)]
        return [*arguments, *self._audit_log(NAMESRV), *self._sets(NAMESRV)]

    def broker_arguments(self, number: int = 0, port: int | None = None) -> list[str]:
        """Return the arguments of one broker of the group. `number` starts at 0.

        `port` is the broker's port before a restart, or None at its first start.
        """
        if port is None:
            port = self.broker_port and self.broker_port + number
        data = self.data / f"replica-{number}" if number else self.data
        given = self._sets(BROKER)
        keys = {item.partition("=")[0].lower() for item in given}
        arguments = ["--port", str(port), "--data", str(data)]
        for setting in self.replicas.settings(number):
            if setting.partition("=")[0].lower() not in keys:
                arguments += ["--set", setting]
        return [*arguments, *self._audit_log(BROKER, number), *given]

    def proxy_arguments(self) -> list[str]:
        port = str(self.proxy_port or 0)
        return ["--port", port, *self._audit_log(PROXY), *self._sets(PROXY)]

    def audit_logs(self) -> list[str]:
        """Return "SERVICE.key=value" for the audit logs of services in one process."""
        found = {service: self._audit_log(service) for service in (NAMESRV, BROKER, PROXY)}
        return [f"{service}.{given[1]}" for service, given in found.items() if given]

    def _audit_log(self, service: str, number: int = 0) -> list[str]:
        given = (set_of(item) for item in self.sets)
        keys = {name.partition("=")[0].lower() for owner, name in given if owner == service}
        if not self.audited or keys & {"auditlogpath", "audit_log_path"}:
            return []
        file = f"{service}-{number}.log" if number else f"{service}.log"
        return ["--set", f"auditLogPath={self.data.absolute() / 'audit' / file}"]

    def _sets(self, service: str) -> list[str]:
        arguments = []
        for item in self.sets:
            if set_of(item)[0] == service:
                arguments += ["--set", set_of(item)[1]]
        return arguments


def set_of(item: str) -> tuple[str, str]:
    """Return the service and the "key=value" of one `--set`. The default service is the broker."""
    service, dot, rest = item.partition(".")
    if dot and service in (NAMESRV, BROKER, PROXY):
        return service, rest
    return BROKER, item


class Suite:
    """A name server, a broker or a broker group, and a proxy if it has a port.

    `on_line` is called with every line of their logs. With `restart_broker`, a broker that ends is
    started again, on the same port and data; `on_restart` is called with the reason. The addresses
    are "host:port", separated by commas for a group, and "" before `start` has returned.
    """

    def __init__(
        self,
        options: SuiteOptions,
        on_line: LineSink,
        *,
        restart_broker: bool = False,
        on_restart: LineSink = print,
    ) -> None:
        self.namesrv_address = ""
        self.proxy_address = ""
        self._options = options
        self._on_line = on_line
        self._restart_broker = restart_broker
        self._on_restart = on_restart
        self._restarts = 0
        self._namesrv = self._child(NAMESRV, options.namesrv_arguments())
        self._addresses: list[str] = []
        self._brokers = [
            self._child(BROKER, options.broker_arguments(number))
            for number in range(options.replicas.copies)
        ]
        # An event for each broker, which is set while the broker may be started again.
        self._may_return = [asyncio.Event() for _ in self._brokers]
        for event in self._may_return:
            event.set()
        self._proxy: Child | None = None
        if options.proxy_port is not None:
            self._proxy = self._child(PROXY, options.proxy_arguments())

    @property
    def broker_address(self) -> str:
        return ",".join(self._addresses)

    def _child(self, service: str, arguments: Sequence[str]) -> Child:
        return Child(service, f"aerobee_{service}", arguments, self._on_line)

    async def start(self) -> None:
        """Start all services. Return when they accept calls.

        If it raises ProcessEnded, the caller must still call `stop`.
        """
        await asyncio.gather(*(child.launch() for child in self._children()))
        await self._namesrv.begin()
        self.namesrv_address = str((await self._namesrv.until_ready())["address"])
        if self._proxy is not None:
            await self._proxy.begin("--namesrv", self.namesrv_address)
        for broker in self._brokers:
            await broker.begin("--namesrv", self.namesrv_address)
        ready = [await broker.until_ready() for broker in self._brokers]
        self._addresses = [str(each["address"]) for each in ready]
        if self._proxy is not None:
            self.proxy_address = str((await self._proxy.until_ready())["address"])

    def _children(self) -> list[Child]:
        """Return the processes in the order in which they are stopped.

        Each process can therefore unregister from the next one.
        """
        return [*([self._proxy] if self._proxy else []), *self._brokers, self._namesrv]

    def hints(self) -> list[str]:
        """Return what the services logged as hints for the user while they started."""
        return [hint for child in self._children() for hint in child.hints]

    async def watch(self) -> None:
        """Keep the processes running.

        Raises ProcessEnded if a process ends and is not started again.
        """
        others = [child for child in self._children() if child not in self._brokers]
        watches = {asyncio.create_task(self._until_end(child)) for child in others}
        for number in range(len(self._brokers)):
            watches.add(asyncio.create_task(self._keep_broker(number)))
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
        for watch in done:
            watch.result()

    @asynccontextmanager
    async def killed(self, address: str) -> AsyncIterator[None]:
        """Kill the broker at `address` with SIGKILL at the beginning of the context.

        With `restart_broker`, the broker is started again after the end of the context.
        """
        number = self._addresses.index(address)
        self._may_return[number].clear()
        try:
            self._brokers[number].kill()
            await self._brokers[number].wait()
            yield
        finally:
            self._may_return[number].set()

    async def _until_end(self, child: Child) -> None:
        await child.wait()
        raise child.failure()

    async def _keep_broker(self, number: int) -> None:
        while True:
            broker = self._brokers[number]
            await broker.wait()
            failure = broker.failure()
            if not self._restart_broker or self._restarts >= MAX_RESTARTS:
                raise failure
            await self._may_return[number].wait()
            self._restarts += 1
            self._on_restart(str(failure))
            port = int(self._addresses[number].rpartition(":")[2])
            broker = self._child(BROKER, self._options.broker_arguments(number, port))
            self._brokers[number] = broker
            await broker.launch()
            await broker.begin("--namesrv", self.namesrv_address)

    async def stop(self) -> None:
        """Stop the services one after the other. May be called more than once."""
        for child in self._children():
            await child.stop()


class OneProcessSuite:
    """A suite like `Suite`, with a single process `aerobee_suite` for all three services."""

    def __init__(self, options: SuiteOptions, on_line: LineSink) -> None:
        self.namesrv_address = self.broker_address = self.proxy_address = ""
        arguments = [
            *("--data", str(options.data)),
            *("--namesrv-port", str(options.namesrv_port)),
            *("--broker-port", str(options.broker_port)),
            *("--proxy-port", str(options.proxy_port or 0)),
        ]
        for item in (*options.audit_logs(), *options.sets):
            arguments += ["--set", item]
        self._child = Child("suite", "aerobee_suite", arguments, on_line)

    async def start(self) -> None:
        """Start all services. Return when they accept calls.

        If it raises ProcessEnded, the caller must still call `stop`.
        """
        await self._child.launch()
        await self._child.begin()
        ready = await self._child.until_ready()
        self.namesrv_address = str(ready["namesrv"])
        self.broker_address = str(ready["broker"])
        self.proxy_address = str(ready["proxy"])

    def hints(self) -> list[str]:
        """Return what the services logged as hints for the user while they started."""
        return self._child.hints

    async def watch(self) -> None:
        """Wait for the end of the process, and then raise ProcessEnded. Never returns."""
        await self._child.wait()
        raise self._child.failure()

    async def stop(self) -> None:
        await self._child.stop()


async def _remarks(options: SuiteOptions) -> list[str]:
    """Return sentences for the user about services that have started."""
    found = [AUTO_CREATION] if options.creates_topics else []
    if options.replicas.remark:
        found.append(options.replicas.remark)
    etcd = options.replicas.etcd
    if etcd and not await any_listens(etcd.split(",")):
        found.append(f"etcd does not answer at {etcd}: no master yet")
    return found


async def any_listens(addresses: Sequence[str]) -> bool:
    """Return whether at least one of `addresses` ("host:port") accepts connections."""
    for address in addresses:
        host, _, port = address.strip().rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                _, writer = await asyncio.open_connection(host, int(port))
        except (OSError, ValueError):
            continue
        writer.close()
        return True
    return False


def _console(port: int | None, on_line: LineSink) -> tuple[OnDemandConsole | None, str]:
    """Return the console at a port, or None and the reason. None is the default port, if free."""
    try:
        return OnDemandConsole(DEFAULT_PORT if port is None else port, on_line), ""
    except OSError as error:
        if port is not None:
            reason = f"console: cannot listen on {HOST}:{port}: {error.strerror}"
            raise ProcessEnded(reason) from None
        taken = f"port {DEFAULT_PORT} is in use, so that there is no console"
        return None, f"{taken}: choose another one with --console-port"


async def serve(
    options: SuiteOptions,
    *,
    one_process: bool = False,
    console: bool = True,
    console_port: int | None = None,
    log_format: LogFormat = LogFormat.AUTO,
) -> None:
    """Start the suite, print the ready line and remarks on stdout, and serve until a signal.

    The logs go to stderr. Raises ProcessEnded if a service ends without a signal, or if a port is
    in use. `console` says whether to open the port of the console; see `_console`.
    """
    signals = StopSignals()
    on_line = writer_of(log_format, sys.stderr)
    suite: Suite | OneProcessSuite
    if one_process:
        suite = OneProcessSuite(options, on_line)
    else:
        # Restart a broker of a group, so that the group keeps its number of copies.
        restart = options.replicas.copies > 1
        suite = Suite(options, on_line, restart_broker=restart, on_restart=on_line)
    visited, remark = _console(console_port, on_line) if console else (None, "")
    try:
        await signals.guard(suite.start())
        print(
            f"ready namesrv={suite.namesrv_address} broker={suite.broker_address} "
            f"proxy={suite.proxy_address}",
            flush=True,
        )
        if visited is not None:
            remark = f"console http://{visited.address} starts with its first visitor"
        remarks = [*([remark] if remark else []), *await _remarks(options)]
        for each in (*remarks, *dict.fromkeys(suite.hints())):
            print(wrapped(each), flush=True)
        works = [visited.serve(suite.namesrv_address)] if visited else []
        await signals.guard(suite.watch(), *works)
    except Stopped:
        return
    finally:
        if visited is not None:
            await visited.stop()
        await suite.stop()


# ---- the console on demand ----
#
# The console of `aerobee up`: its port is open from the start, its process only for visitors.
#
# This process listens, and starts the console at the first connection. The console inherits the
# socket and accepts the connections itself. It ends 30 minutes after its last visitor, and the next
# connection starts it again.


HOST = "127.0.0.1"
DEFAULT_PORT = 8_082
IDLE_S = 30 * 60


class OnDemandConsole:
    """A console that runs while it has visitors.

    Args:
        port: The port to listen on; 0 for a free one.
        on_line: Called with every line of its log.
        idle_s: The time without a visitor after which it ends, in seconds.

    Raises:
        OSError: The port is in use.
    """

    def __init__(self, port: int, on_line: LineSink, *, idle_s: float = IDLE_S) -> None:
        self._listener = socket.create_server((HOST, port))
        self._listener.setblocking(False)
        self._on_line = on_line
        self._idle_s = idle_s
        self._child: Child | None = None
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"

    async def serve(self, namesrv: str) -> None:
        """Start the console for visitors, again and again. Never returns."""
        while True:
            await self._connection()
            file = self._listener.fileno()
            arguments = ["--fd", str(file), "--idle-exit", str(self._idle_s)]
            self._child = Child(
                "console", "aerobee_console", arguments, self._on_line, pass_fds=[file]
            )
            try:
                await self._child.launch()
                await self._child.begin("--namesrv", namesrv)
                await self._child.until_ready()
                if await self._child.wait():
                    raise self._child.failure()
            except (ProcessEnded, OSError) as failure:  # the services run on without a console
                self._on_line(str(failure))
                self._refuse()

    async def stop(self) -> None:
        """Stop the console, and close its port."""
        if self._child is not None:
            await self._child.stop()
        self._listener.close()

    async def _connection(self) -> None:
        """Wait for a connection, which stays in the queue of the socket."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        loop.add_reader(self._listener, arrived.set)
        try:
            await arrived.wait()
        finally:
            loop.remove_reader(self._listener)

    def _refuse(self) -> None:
        """Close the connections that wait, so that they do not start a failing console again."""
        with suppress(OSError):  # none waits any more
            while True:
                self._listener.accept()[0].close()
