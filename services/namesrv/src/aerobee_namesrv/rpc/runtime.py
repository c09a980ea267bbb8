"""The configuration of the running process: GetRuntimeConfig, UpdateRuntimeConfig.

Codes: NO_PERMISSION (the key can only be set at start); INVALID_PARAMETER (unknown key, bad value).

Differences from Apache's: there is a list of allowed keys, where Apache has a list of forbidden
ones. A change is not written to a file: it is lost when the process ends.
"""

from __future__ import annotations

import structlog
from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_chassis.rpc.call import Call
from aerobee_namesrv.config import RuntimeOptions


class RuntimeRpcs:
    def __init__(self, options: RuntimeOptions) -> None:
        self._options = options

    async def get_runtime_config(
        self, request: pb.GetRuntimeConfigRequest, call: Call
    ) -> pb.GetRuntimeConfigResponse:
        return pb.GetRuntimeConfigResponse(entries=self._options.entries())

    async def update_runtime_config(
        self, request: pb.UpdateRuntimeConfigRequest, call: Call
    ) -> pb.UpdateRuntimeConfigResponse:
        self._options.update(request.entries)
        structlog.get_logger().info(
            "options_changed", peer=call.peer, changed=dict(request.entries)
        )
        return pb.UpdateRuntimeConfigResponse()
