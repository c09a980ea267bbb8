"""The services as child processes of this one: what `aerobee up` and `aerobee demo` stand on.

They load at the same time; broker and proxy begin once it is known where the name server listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_cli.processes.supervise import Child, LineSink

NAMESRV = "namesrv"
BROKER = "broker"
PROXY = "proxy"
NAMESRV_MODULE = "aerobee_namesrv"
BROKER_MODULE = "aerobee_broker"
PROXY_MODULE = "aerobee_proxy"
# What the proxy creates for SDKs takes every type of message.
MIXED_TYPES = "enableMixedMessageType=true"
# A broker that dies more often than this is not brought back again.
MAX_RESTARTS = 5


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """`sets`: "key=value" for the broker, "namesrv.key=value" and "proxy.key=value" for the others.
    Port 0: a free one. `proxy_port` None: no proxy."""

    data: Path
    namesrv_port: int = 0
    broker_port: int = 0
    sets: Sequence[str] = ()
    proxy_port: int | None = None

    def namesrv_arguments(self) -> list[str]:
        return ["--port", str(self.namesrv_port), "--data", str(self.data), *self._sets(NAMESRV)]

    def broker_arguments(self) -> list[str]:
        # First, so that one of `sets` can turn it off.
        mixed = [] if self.proxy_port is None else ["--set", MIXED_TYPES]
        return [
            *("--port", str(self.broker_port), "--data", str(self.data)),
            *mixed,
            *self._sets(BROKER),
        ]

    def proxy_arguments(self) -> list[str]:
        return ["--port", str(self.proxy_port or 0), *self._sets(PROXY)]

    def _sets(self, service: str) -> list[str]:
        arguments = []
        for item in self.sets:
            if set_of(item)[0] == service:
                arguments += ["--set", set_of(item)[1]]
        return arguments


def set_of(item: str) -> tuple[str, str]:
    """(service, "key=value") of one `--set`. Without a service in front it is the broker's."""
    service, dot, rest = item.partition(".")
    if dot and service in (NAMESRV, BROKER, PROXY):
        return service, rest
    return BROKER, item


@dataclass(slots=True)
class Suite:
    """A name server and a broker, and a proxy when there is a port for it.

    `on_line` gets every line of their logs. `restart_broker`: a broker that dies is started again,
    on the same port and data; `on_restart` is told why.
    """

    options: SuiteOptions
    on_line: LineSink
    restart_broker: bool = False
    on_restart: LineSink = print
    namesrv_address: str = ""
    broker_address: str = ""
    proxy_address: str = ""
    restarts: int = 0
    _namesrv: Child = field(init=False)
    _broker: Child = field(init=False)
    _proxy: Child | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._namesrv = Child(
            NAMESRV, NAMESRV_MODULE, self.options.namesrv_arguments(), self.on_line
        )
        self._broker = self._new_broker(self.options.broker_port)
        if self.options.proxy_port is not None:
            self._proxy = Child(PROXY, PROXY_MODULE, self.options.proxy_arguments(), self.on_line)

    def _new_broker(self, port: int) -> Child:
        arguments = self.options.broker_arguments()
        arguments[arguments.index("--port") + 1] = str(port)
        return Child(BROKER, BROKER_MODULE, arguments, self.on_line)

    async def start(self) -> None:
        """Returns when all serve. Raises ProcessEnded; then `stop` is still to be called."""
        await asyncio.gather(*(child.launch() for child in self._children()))
        await self._namesrv.begin()
        self.namesrv_address = str((await self._namesrv.until_ready())["address"])
        if self._proxy is not None:
            await self._proxy.begin("--namesrv", self.namesrv_address)
        await self._broker.begin("--namesrv", self.namesrv_address)
        self.broker_address = str((await self._broker.until_ready())["address"])
        if self._proxy is not None:
            self.proxy_address = str((await self._proxy.until_ready())["address"])

    def _children(self) -> list[Child]:
        """In the order that they stop in: each can still take leave of the next."""
        return [*([self._proxy] if self._proxy else []), self._broker, self._namesrv]

    async def watch(self) -> None:
        """Never returns. Raises ProcessEnded once a child has died for good."""
        watches = {
            asyncio.create_task(self._until_end(self._namesrv)),
            asyncio.create_task(self._keep_broker()),
        }
        if self._proxy is not None:
            watches.add(asyncio.create_task(self._until_end(self._proxy)))
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
        for watch in done:
            watch.result()

    async def _until_end(self, child: Child) -> None:
        await child.wait()
        raise child.failure()

    async def _keep_broker(self) -> None:
        while True:
            await self._broker.wait()
            failure = self._broker.failure()
            if not self.restart_broker or self.restarts >= MAX_RESTARTS:
                raise failure
            self.restarts += 1
            self.on_restart(str(failure))
            self._broker = self._new_broker(int(self.broker_address.rpartition(":")[2]))
            await self._broker.launch()
            await self._broker.begin("--namesrv", self.namesrv_address)

    async def stop(self) -> None:
        """One after the other. May be called twice."""
        for child in self._children():
            await child.stop()
