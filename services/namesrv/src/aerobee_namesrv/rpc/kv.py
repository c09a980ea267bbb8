"""The key-value configuration: PutKvConfig, GetKvConfig, DeleteKvConfig, ListKvConfig.

Codes: INVALID_PARAMETER; QUERY_NOT_FOUND (the namespace or key does not exist); SYSTEM_ERROR,
retryable (the file cannot be written).
"""

from __future__ import annotations

from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_chassis.rpc.call import Call
from aerobee_namesrv.kv_config import KVConfigManager
from aerobee_namesrv.rpc import checks


class KvRpcs:
    def __init__(self, kv_config: KVConfigManager) -> None:
        self._kv_config = kv_config

    async def put_kv_config(
        self, request: pb.PutKvConfigRequest, call: Call
    ) -> pb.PutKvConfigResponse:
        self._kv_config.put(*_namespace_and_key(request), request.value)
        return pb.PutKvConfigResponse()

    async def get_kv_config(
        self, request: pb.GetKvConfigRequest, call: Call
    ) -> pb.GetKvConfigResponse:
        return pb.GetKvConfigResponse(value=self._kv_config.get(*_namespace_and_key(request)))

    async def delete_kv_config(
        self, request: pb.DeleteKvConfigRequest, call: Call
    ) -> pb.DeleteKvConfigResponse:
        self._kv_config.delete(*_namespace_and_key(request))
        return pb.DeleteKvConfigResponse()

    async def list_kv_config(
        self, request: pb.ListKvConfigRequest, call: Call
    ) -> pb.ListKvConfigResponse:
        namespace = checks.name("namespace", request.namespace)
        return pb.ListKvConfigResponse(entries=self._kv_config.entries(namespace))


def _namespace_and_key(
    request: pb.PutKvConfigRequest | pb.GetKvConfigRequest | pb.DeleteKvConfigRequest,
) -> tuple[str, str]:
    return checks.name("namespace", request.namespace), checks.name("key", request.key)
