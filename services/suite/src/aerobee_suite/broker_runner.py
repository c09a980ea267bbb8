"""Run the broker of a suite.

Tests may kill and restart it while the other services keep running.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aerobee_broker.app import BrokerApp
from aerobee_broker.broker import Broker
from aerobee_broker.config import BrokerOptions
from aerobee_chassis.background import PeriodicTask
from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.services import Adapt
from aerobee_suite.mortal_disk import MortalDisk
from aerobee_wire.status import illegal_operation


@dataclass(slots=True, eq=False)
class BrokerRunner:
    """Start, stop, kill and restart the broker.

    If `options` leave the port free, the first start chooses a port, and later starts use it again.
    """

    options: BrokerOptions
    clock: Clock
    adapt: Adapt
    _app: BrokerApp | None = field(default=None, init=False)
    _disk: MortalDisk = field(default_factory=MortalDisk, init=False)
    _address: str = field(default="", init=False)

    @property
    def address(self) -> str:
        """Return the broker's "host:port", also while it is down, or "" before the first start."""
        return self._address

    @property
    def running(self) -> Broker | None:
        return self._app.broker if self._app is not None else None

    @property
    def upkeep(self) -> Sequence[PeriodicTask]:
        """Return the periodic tasks of the running broker."""
        return self._app.upkeep if self._app is not None else ()

    async def start(self, namesrv: str = "") -> None:
        """Start the broker. Raises StartError.

        The first start needs `namesrv`, the "host:port" of the name server.
        """
        if namesrv:
            self.options = self.options.model_copy(update={"namesrv_addr": namesrv})
        self._disk = MortalDisk()
        app = self._app = BrokerApp(
            self.options, clock=self.clock, disk=self._disk, adapt=self.adapt
        )
        await app.start()
        self._address = app.address
        self.options = self.options.model_copy(
            update={"listen_port": int(app.address.rpartition(":")[2])}
        )

    async def stop(self) -> None:
        """Stop the broker if it is running."""
        app, self._app = self._app, None
        if app is not None:
            await app.stop()

    async def kill(self) -> None:
        """Simulate kill -9 for the clients and the files of the broker.

        Connections break during calls, and nothing is written afterwards. Data that was written to
        the operating system is kept. Raises MqError with the code ILLEGAL_OPERATION if the broker
        does not run.
        """
        app = self._app
        if app is None:
            raise illegal_operation("the broker does not run: restart it before you kill it")
        # Do not await between these two calls: a write between them would be lost but acknowledged.
        self._disk.die()
        await app.sever()
        await self.stop()
