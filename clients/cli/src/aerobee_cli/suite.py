"""The services as child processes of this one: what `aerobee up` and `aerobee demo` stand on.

They load at the same time; the broker begins once it is known where the name server listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_cli.supervise import Child, LineSink

NAMESRV = "namesrv"
BROKER = "broker"
NAMESRV_MODULE = "aerobee_namesrv"
BROKER_MODULE = "aerobee_broker"
# A broker that dies more often than this is not brought back again.
MAX_RESTARTS = 5


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """`sets`: "key=value" for the broker, "namesrv.key=value" for the name server. Port 0: a free
    one."""

    data: Path
    namesrv_port: int = 0
    broker_port: int = 0
    sets: Sequence[str] = ()

    def namesrv_arguments(self) -> list[str]:
        return ["--port", str(self.namesrv_port), *self._common(NAMESRV)]

    def broker_arguments(self) -> list[str]:
        return ["--port", str(self.broker_port), *self._common(BROKER)]

    def _common(self, service: str) -> list[str]:
        arguments = ["--data", str(self.data)]
        for item in self.sets:
            if set_of(item)[0] == service:
                arguments += ["--set", set_of(item)[1]]
        return arguments


def set_of(item: str) -> tuple[str, str]:
    """(service, "key=value") of one `--set`. Without a service in front it is the broker's."""
    service, dot, rest = item.partition(".")
    if dot and service in (NAMESRV, BROKER):
        return service, rest
    return BROKER, item


@dataclass(slots=True)
class Suite:
    """A name server and a broker.

    `on_line` gets every line of their logs. `restart_broker`: a broker that dies is started again,
    on the same port and data; `on_restart` is told why.
    """

    options: SuiteOptions
    on_line: LineSink
    restart_broker: bool = False
    on_restart: LineSink = print
    namesrv_address: str = ""
    broker_address: str = ""
    restarts: int = 0
    _namesrv: Child = field(init=False)
    _broker: Child = field(init=False)

    def __post_init__(self) -> None:
        self._namesrv = Child(
            NAMESRV, NAMESRV_MODULE, self.options.namesrv_arguments(), self.on_line
        )
        self._broker = self._new_broker(self.options.broker_port)

    def _new_broker(self, port: int) -> Child:
        arguments = self.options.broker_arguments()
        arguments[arguments.index("--port") + 1] = str(port)
        return Child(BROKER, BROKER_MODULE, arguments, self.on_line)

    async def start(self) -> None:
        """Returns when both serve. Raises ProcessEnded; then `stop` is still to be called."""
        await asyncio.gather(self._namesrv.launch(), self._broker.launch())
        await self._namesrv.begin()
        self.namesrv_address = str((await self._namesrv.until_ready())["address"])
        await self._begin_broker()

    async def _begin_broker(self) -> None:
        await self._broker.begin("--namesrv", self.namesrv_address)
        self.broker_address = str((await self._broker.until_ready())["address"])

    async def watch(self) -> None:
        """Never returns. Raises ProcessEnded once a child has died for good."""
        watches = {
            asyncio.create_task(self._namesrv.wait()),
            asyncio.create_task(self._keep_broker()),
        }
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
        for watch in done:
            watch.result()
        raise self._namesrv.failure()

    async def _keep_broker(self) -> None:
        while True:
            await self._broker.wait()
            await self._bring_back()

    async def _bring_back(self) -> None:
        failure = self._broker.failure()
        if not self.restart_broker or self.restarts >= MAX_RESTARTS:
            raise failure
        self.restarts += 1
        self.on_restart(str(failure))
        self._broker = self._new_broker(int(self.broker_address.rpartition(":")[2]))
        await self._broker.launch()
        await self._begin_broker()

    async def stop(self) -> None:
        """Broker first, so that it can still take leave of the name server. May be called twice."""
        await self._broker.stop()
        await self._namesrv.stop()
