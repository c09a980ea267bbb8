"""Register a broker with the name servers.

A replica has one registration for each role. The new role is registered before the old registration
ends, so that the broker never disappears from routes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aerobee_broker.cluster.identity import Identity
from aerobee_broker.cluster.peers import broker_caller
from aerobee_broker.cluster.registration import Link, Registration, Timing, unreachable
from aerobee_broker.cluster.twins import Twins
from aerobee_broker.registry.broker_permission import BrokerPermission
from aerobee_broker.wiring.environment import Environment
from aerobee_broker.wiring.tables import Tables
from aerobee_chassis.clock import real_time
from aerobee_chassis.rpc.caller import Caller
from aerobee_wire.status import Code, MqError


class NameServerRegistration:
    """Own the current registration of a replica, and create registrations for any broker.

    `identity` is the identity of this broker. For a replica, its `broker_id` depends on the role.
    """

    def __init__(
        self,
        environment: Environment,
        identity: Identity,
        stop: Callable[[MqError], None],
        store_id: Callable[[], str] = lambda: "",
    ) -> None:
        """Create the object without a registration.

        `stop` is called with an error if another process has the same number; it must end the
        process. `store_id` is called after the store is open.
        """
        self.identity = identity
        self._options = environment.options
        self._namesrvs = environment.namesrvs
        self._store_id = store_id
        self._twins = Twins(
            identity,
            environment.clock.real,
            broker_caller(environment.options),
            stop,
        )
        self._registration: Registration | None = None

    def as_broker(self, broker_id: int) -> Identity:
        return replace(self.identity, broker_id=broker_id, store_id=self._store_id())

    def make(
        self, broker_id: int, tables: Tables, epoch: Callable[[], int] = lambda: 0
    ) -> Registration:
        """Return a new registration with this broker id, which is not started yet.

        A replica passes the registration to `switch`. A broker without replicas starts and stops it
        itself.
        """
        options, identity = self._options, self.as_broker(broker_id)
        permission = BrokerPermission(options.broker_permission, tables.drain)

        def link(namesrv: str) -> Link:
            return Link(
                namesrv,
                Caller(unreachable(Code.NAMESRV_UNREACHABLE, "name server"), options.peer_tls()),
                identity,
                tables.topics,
                permission=permission.bits,
                timing=Timing.of(
                    period_ms=options.register_name_server_period,
                    timeout_ms=options.register_broker_timeout_mills,
                ),
                twins=self._twins,
                epoch=epoch,
                will_return=lambda: tables.drain.will_return,
            )

        return Registration(self._namesrvs, link)

    async def switch(self, registration: Registration) -> None:
        """Register with `registration`, then end the previous registration."""
        before, self._registration = self._registration, registration
        try:
            with real_time():  # liveness runs on real time, also in tests with a simulated clock
                await registration.start_anywhere()
        finally:  # a role that is cancelled here must not leave two registrations
            if before is not None:
                await before.hand_over()

    @property
    def is_registered(self) -> bool:
        """Return whether this process is registered, under any broker id."""
        return self._registration is not None

    async def close(self) -> None:
        """Unregister this broker, because it stops."""
        registration, self._registration = self._registration, None
        if registration is not None:
            await registration.stop()
        await self._twins.close()
