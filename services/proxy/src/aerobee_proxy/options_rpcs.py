"""Implement ProxyConfigService on the administration port: the options of the running proxy.

Codes: NO_PERMISSION (the key can only be set at the start), INVALID_PARAMETER (unknown key, bad
value), SYSTEM_ERROR, retryable (the file cannot be written).
"""

from __future__ import annotations

from aerobee.broker.v1 import config_pb2 as pb

from aerobee_chassis.rpc.call import Call
from aerobee_chassis.runtime_config import RuntimeConfig
from aerobee_proxy.config import ProxyOptions


class OptionsRpcs:
    def __init__(self, config: RuntimeConfig[ProxyOptions]) -> None:
        self._config = config

    async def get_config(self, request: pb.GetConfigRequest, call: Call) -> pb.GetConfigResponse:
        return pb.GetConfigResponse(
            options=[pb.ConfigOption(**each._asdict()) for each in self._config.runtime.shown()]
        )

    async def update_config(
        self, request: pb.UpdateConfigRequest, call: Call
    ) -> pb.UpdateConfigResponse:
        without_effect = await self._config.change(request.entries, request.unset, call.peer)
        return pb.UpdateConfigResponse(without_effect=without_effect)
