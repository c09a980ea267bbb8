"""The broker of a suite, which may be killed and started again while the rest goes on."""

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
from aerobee_wire.status import Code, MqError


@dataclass(slots=True, eq=False)
class BrokerRunner:
    """The first start chooses the port, when `options` leave it free; later ones keep it."""

    options: BrokerOptions
    clock: Clock
    adapt: Adapt
    _app: BrokerApp | None = field(default=None, init=False)
    _disk: MortalDisk = field(default_factory=MortalDisk, init=False)
    _address: str = field(default="", init=False)

    @property
    def address(self) -> str:
        """The "host:port", once it was started; also while it does not run."""
        return self._address

    @property
    def running(self) -> Broker | None:
        return self._app.broker if self._app is not None else None

    @property
    def upkeep(self) -> Sequence[PeriodicTask]:
        """The periodic work of the broker that runs."""
        return self._app.upkeep if self._app is not None else ()

    async def start(self, namesrv: str = "") -> None:
        """`namesrv`: "host:port", at the first start. Raises StartError."""
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
        """Does nothing when it does not run."""
        app, self._app = self._app, None
        if app is not None:
            await app.stop()

    async def kill(self) -> None:
        """As kill -9 for its clients and its files: connections break in the middle of calls, and
        from then on nothing is written. What the kernel had is kept. Raises ILLEGAL_OPERATION."""
        app = self._app
        if app is None:
            raise MqError(
                Code.ILLEGAL_OPERATION, "the broker does not run: restart it before you kill it"
            )
        # No turn of the loop between the two: what is written now would be acknowledged.
        self._disk.die()
        await app.sever()
        await self.stop()
