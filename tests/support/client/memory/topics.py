"""Administration of the topics of a broker in memory."""

from __future__ import annotations

from typing import Any

from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_wire.status import Code, MqError


class TopicRpcs:
    """`broker`: a MemoryBroker."""

    def _PutTopic(self, broker: Any, request: Any) -> Any:
        created = request.topic.topic not in broker.topics
        if created or not request.only_new:
            broker.create(request.topic.topic, request.topic.write_queue_count)
        return admin_pb2.PutTopicResponse(created=created)

    def _GetTopic(self, broker: Any, request: Any) -> Any:
        check_topic(broker, request.topic)
        count = broker.topics[request.topic]
        config = namesrv_pb2.TopicConfig(
            topic=request.topic, read_queue_count=count, write_queue_count=count, permission=6
        )
        return admin_pb2.GetTopicResponse(topic=config)

    def _GetGroup(self, broker: Any, request: Any) -> Any:
        raise MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"no group {request.consumer_group}")

    def _DeleteTopic(self, broker: Any, request: Any) -> Any:
        return admin_pb2.DeleteTopicResponse(
            deleted=broker.topics.pop(request.topic, None) is not None
        )


def check_topic(broker: Any, topic: str) -> None:
    if topic not in broker.topics:
        raise MqError(Code.TOPIC_NOT_EXIST, f"no topic {topic}")
