"""Implement ProxyConfigService on the administration port: the options of the running proxy.

Codes: NO_PERMISSION (the key can only be set at the start), INVALID_PARAMETER (unknown key, bad
value), SYSTEM_ERROR, retryable (the file cannot be written).
"""

from __future__ import annotations

import structlog
from aerobee.broker.v1 import config_pb2 as pb

from aerobee_chassis import logs
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.runtime_config import RuntimeConfig
from aerobee_proxy.config import ProxyOptions


class OptionsRpcs:
    def __init__(self, config: RuntimeConfig[ProxyOptions]) -> None:
        self._config = config

    async def get_config(self, request: pb.GetConfigRequest, call: Call) -> pb.GetConfigResponse:
        runtime = self._config.runtime
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
        entries, unset = dict(request.entries), list(request.unset)
        without_effect = self._config.update(entries, unset)
        logs.set_level(self._config.now.log_level)
        structlog.get_logger().info("options_changed", peer=call.peer, changed=entries, unset=unset)
        return pb.UpdateConfigResponse(without_effect=without_effect)
