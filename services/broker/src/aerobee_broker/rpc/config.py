"""Implement ConfigService: the options of the running process.

Codes: NO_PERMISSION (the key can only be set at the start), INVALID_PARAMETER (unknown key, bad
value), SYSTEM_ERROR, retryable (the file cannot be written).

Differences from Apache's server: there is a list of allowed keys instead of a list of forbidden
keys, and a change is kept in a file of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aerobee.broker.v1 import config_pb2 as pb

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.runtime_config import RuntimeConfig


class ConfigRpcs:
    """`use` puts changed options into effect."""

    def __init__(
        self,
        config: RuntimeConfig[BrokerOptions],
        use: Callable[[BrokerOptions], Awaitable[None]],
    ) -> None:
        self._config = config
        self._use = use

    async def get_config(self, request: pb.GetConfigRequest, call: Call) -> pb.GetConfigResponse:
        return pb.GetConfigResponse(
            options=[pb.ConfigOption(**each._asdict()) for each in self._config.runtime.shown()]
        )

    async def update_config(
        self, request: pb.UpdateConfigRequest, call: Call
    ) -> pb.UpdateConfigResponse:
        entries, unset = request.entries, request.unset
        without_effect = await self._config.change(entries, unset, call.peer, self._use)
        return pb.UpdateConfigResponse(without_effect=without_effect)
