"""The services in one child process: `aerobee up --one-process`."""

from __future__ import annotations

from aerobee_cli.processes.suite import SuiteOptions
from aerobee_cli.processes.supervise import Child, LineSink


class OneProcessSuite:
    """A suite like `Suite`, with one process `aerobee_suite` for all three services."""

    def __init__(self, options: SuiteOptions, on_line: LineSink) -> None:
        self.namesrv_address = self.broker_address = self.proxy_address = ""
        arguments = [
            *("--data", str(options.data)),
            *("--namesrv-port", str(options.namesrv_port)),
            *("--broker-port", str(options.broker_port)),
            *("--proxy-port", str(options.proxy_port or 0)),
        ]
        for item in options.sets:
            arguments += ["--set", item]
        self._child = Child("suite", "aerobee_suite", arguments, on_line)

    async def start(self) -> None:
        """Start; return when all serve. Raises ProcessEnded; call `stop` even then."""
        await self._child.launch()
        await self._child.begin()
        ready = await self._child.until_ready()
        self.namesrv_address = str(ready["namesrv"])
        self.broker_address = str(ready["broker"])
        self.proxy_address = str(ready["proxy"])

    async def watch(self) -> None:
        """Wait for the end of the process. Never returns; raises ProcessEnded."""
        await self._child.wait()
        raise self._child.failure()

    async def stop(self) -> None:
        await self._child.stop()
