"""Implement the RPCs of administrators: table edits, key-value and runtime configuration."""

from __future__ import annotations

from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_chassis.rpc.call import Call
from aerobee_chassis.runtime_config import RuntimeConfig
from aerobee_namesrv.config import NamesrvOptions
from aerobee_namesrv.kv_config import KVConfigManager
from aerobee_namesrv.routing.route_info_manager import RouteInfoManager
from aerobee_namesrv.rpc import checks, convert
from aerobee_wire import topics


class EditRpcs:
    """Implement WipeWritePermission, AddWritePermission, DeleteTopic and RegisterTopic.

    Code: INVALID_PARAMETER. An unknown broker or topic is not an error, and changes nothing.

    Differences from Apache's server: a count is the number of changed topics, not of all topics. A
    topic that is registered manually needs a valid name and at least one queue.
    """

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager

    async def wipe_write_permission(
        self, request: pb.WipeWritePermissionRequest, call: Call
    ) -> pb.WritePermissionResponse:
        name = checks.name("broker_name", request.broker_name)
        changed = self._manager.topic_queue_table.wipe_write({name})
        return pb.WritePermissionResponse(topic_count=changed)

    async def add_write_permission(
        self, request: pb.AddWritePermissionRequest, call: Call
    ) -> pb.WritePermissionResponse:
        name = checks.name("broker_name", request.broker_name)
        changed = self._manager.topic_queue_table.add_write({name})
        return pb.WritePermissionResponse(topic_count=changed)

    async def delete_topic(
        self, request: pb.DeleteTopicRequest, call: Call
    ) -> pb.DeleteTopicResponse:
        topic = checks.name("topic", request.topic)
        self._manager.delete_topic(topic, request.cluster)
        return pb.DeleteTopicResponse()

    async def register_topic(
        self, request: pb.RegisterTopicRequest, call: Call
    ) -> pb.RegisterTopicResponse:
        topics.check_topic(request.topic)
        checks.not_empty("queues", request.queues)
        queues = [convert.queue_data(queue) for queue in request.queues]
        registered = self._manager.register_topic(request.topic, queues)
        return pb.RegisterTopicResponse(registered=registered)


class KvRpcs:
    """Implement PutKvConfig, GetKvConfig, DeleteKvConfig and ListKvConfig.

    Codes: INVALID_PARAMETER; QUERY_NOT_FOUND (the namespace or key does not exist); SYSTEM_ERROR,
    retryable (the file cannot be written).
    """

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


class RuntimeRpcs:
    """Implement GetRuntimeConfig and UpdateRuntimeConfig: the options of the running process.

    Codes: NO_PERMISSION (the key can only be set at the start); INVALID_PARAMETER (unknown key, bad
    value); SYSTEM_ERROR, retryable (the file cannot be written).

    Differences from Apache's server: there is a list of allowed keys instead of a list of forbidden
    keys. The file contains the changes only.
    """

    def __init__(self, config: RuntimeConfig[NamesrvOptions]) -> None:
        self._config = config

    async def get_runtime_config(
        self, request: pb.GetRuntimeConfigRequest, call: Call
    ) -> pb.GetRuntimeConfigResponse:
        runtime = self._config.runtime
        return pb.GetRuntimeConfigResponse(
            entries=runtime.entries(), sources=runtime.sources(), changeable=runtime.keys
        )

    async def update_runtime_config(
        self, request: pb.UpdateRuntimeConfigRequest, call: Call
    ) -> pb.UpdateRuntimeConfigResponse:
        without_effect = await self._config.change(request.entries, request.unset, call.peer)
        return pb.UpdateRuntimeConfigResponse(without_effect=without_effect)
