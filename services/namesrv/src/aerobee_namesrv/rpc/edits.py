"""Manual edits of the tables: WipeWritePermission, AddWritePermission, DeleteTopic, RegisterTopic.

Codes: INVALID_PARAMETER. An unknown broker or topic is not an error; nothing is changed.

Differences from Apache's: a count is the number of changed topics, not of all topics. A topic that
is registered manually needs a legal name and at least one queue.
"""

from __future__ import annotations

from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_chassis.rpc.call import Call
from aerobee_namesrv.routing.route_info_manager import RouteInfoManager
from aerobee_namesrv.rpc import checks, convert
from aerobee_wire import topics


class EditRpcs:
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
