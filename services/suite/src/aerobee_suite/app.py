"""Run the process of a suite: name server, broker and proxy.

The services start in this order, and stop in reverse order. All three share one event loop. They
communicate by gRPC, like separate processes.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from aerobee_chassis.clock import Clock, SystemClock, real_time
from aerobee_chassis.lifecycle import App, Component, Step
from aerobee_chassis.rpc.services import Adapt
from aerobee_namesrv.app import NamesrvApp
from aerobee_proxy.app import ProxyApp
from aerobee_suite.broker_runner import BrokerRunner
from aerobee_suite.control.control import Control
from aerobee_suite.options import BROKER, NAMESRV, PROXY, SuiteOptions


class SuiteApp(App):
    """Run a suite.

    `control` lets tests cause faults and advance time (`--test-control`). It is None outside of
    tests.
    """

    def __init__(self, options: SuiteOptions, control: Control | None = None) -> None:
        super().__init__()
        self._options = options
        self._control = control
        self._clock: Clock = control.clock if control is not None else SystemClock()
        adapt: Adapt = control.refusals.guard if control is not None else tuple
        self._namesrv: NamesrvApp | None = None
        self._proxy: ProxyApp | None = None
        self._broker = BrokerRunner(options.broker, self._clock, adapt)

    @property
    def addresses(self) -> Mapping[str, str]:
        """Return the "host:port" of each started service, by its name."""
        apps = {NAMESRV: self._namesrv, PROXY: self._proxy}
        started = {name: app.address for name, app in apps.items() if app is not None}
        return {**started, BROKER: self._broker.address}

    async def _start_components(self) -> Mapping[str, object]:
        with structlog.contextvars.bound_contextvars(service=NAMESRV), real_time():
            await self.lifecycle.start(_Member(self._make_namesrv()))
        assert self._namesrv is not None
        with structlog.contextvars.bound_contextvars(service=BROKER):
            await self.lifecycle.start(Step(stop=self._broker.stop))
            await self._broker.start(self._namesrv.address)
        with structlog.contextvars.bound_contextvars(service=PROXY):
            await self.lifecycle.start(_Member(self._make_proxy(self._namesrv.address)))
        return {"address": self._namesrv.address, **self.addresses}

    def _make_namesrv(self) -> NamesrvApp:
        adapt: Adapt = tuple
        if self._control is not None:
            adapt = self._control.services(self._broker, lambda: self.addresses, self._proxy_of)
        self._namesrv = NamesrvApp(self._options.namesrv, adapt=adapt)
        return self._namesrv

    def _make_proxy(self, namesrv: str) -> ProxyApp:
        options = self._options.proxy.model_copy(update={"namesrv_addr": namesrv})
        self._proxy = ProxyApp(options, self._clock)
        return self._proxy

    def _proxy_of(self) -> ProxyApp | None:
        return self._proxy


class _Member(Component):
    """Make a service a component of the suite."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def start(self) -> None:
        await self._app.start()

    async def stop(self) -> None:
        await self._app.stop()
