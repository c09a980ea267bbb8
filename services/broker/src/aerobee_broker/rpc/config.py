"""Implement ConfigService: the options of the running process.

Codes: NO_PERMISSION (the key can only be set at the start), INVALID_PARAMETER (unknown key, bad
value), SYSTEM_ERROR, retryable (the file cannot be written).

Differences from Apache's server: there is a list of allowed keys instead of a list of forbidden
keys, and a change is kept in a file of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog
from aerobee.broker.v1 import config_pb2 as pb

from aerobee_broker.config import BrokerOptions
from aerobee_broker.metadata.runtime_config import RuntimeConfig
from aerobee_chassis.rpc.call import Call


@dataclass(frozen=True, slots=True)
class ConfigRpcs:
    """`use` puts changed options into effect."""

    config: RuntimeConfig
    use: Callable[[BrokerOptions], Awaitable[None]]
    _running: set[asyncio.Task[pb.UpdateConfigResponse]] = field(default_factory=set, init=False)

    async def get_config(self, request: pb.GetConfigRequest, call: Call) -> pb.GetConfigResponse:
        runtime = self.config.runtime
        sources, changeable = runtime.sources(), set(runtime.keys)
        return pb.GetConfigResponse(
            options=[
                pb.ConfigOption(
                    key=key, value=value, source=sources[key], changeable=key in changeable
                )
                for key, value in runtime.entries().items()
            ]
        )

    async def update_config(
        self, request: pb.UpdateConfigRequest, call: Call
    ) -> pb.UpdateConfigResponse:
        """Change options. A caller that disconnects does not end the change.

        The thread would still write the file, and the process would run without its options.
        """
        task = asyncio.create_task(self._update(request, call.peer))
        self._running.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _update(self, request: pb.UpdateConfigRequest, peer: str) -> pb.UpdateConfigResponse:
        entries, unset = dict(request.entries), list(request.unset)
        without_effect = await self.config.update(entries, unset)
        structlog.get_logger().info("options_changed", peer=peer, changed=entries, unset=unset)
        await self.use(self.config.options)
        return pb.UpdateConfigResponse(without_effect=without_effect)
