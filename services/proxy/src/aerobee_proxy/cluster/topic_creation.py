"""Topics that come into being when a client first asks for their route.

Only while brokers allow it: those that create topics by themselves register TBW102. A topic is made
on all of them at once, so that it does not live on the one broker that happened to be asked. It
takes every type of message where the broker has mixed types turned on, else normal ones.
"""

from __future__ import annotations

import asyncio

import structlog
from aerobee.broker.v1.admin_pb2 import PutTopicRequest
from aerobee.namesrv.v1.namesrv_pb2 import QueueData, TopicConfig, TopicRoute

from aerobee_proxy.cluster.broker_calls import Brokers
from aerobee_proxy.cluster.route_cache import MESSAGE_TYPE_ATTRIBUTE, READABLE, WRITABLE, Topology
from aerobee_wire import topics
from aerobee_wire.rpcs import PUT_TOPIC
from aerobee_wire.status import Code, MqError


class TopicCreation:
    def __init__(self, brokers: Brokers, topology: Topology) -> None:
        self._brokers = brokers
        self._topology = topology

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic that is made if it is unknown and may be.

        Raises MqError TOPIC_NOT_EXIST, with what to do about it, when it may not.
        """
        try:
            return await self._topology.route(topic)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST or topics.group_of(topic) is not None:
                raise
        await self._create(topic)
        try:
            return await self._topology.route(topic)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
        # That was the answer to a question of somebody else, asked before the topic was there.
        return await self._topology.route(topic)

    async def _create(self, topic: str) -> None:
        try:
            pattern = await self._topology.route(topics.AUTO_CREATE_TOPIC)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
            raise MqError(
                Code.TOPIC_NOT_EXIST,
                f"there is no topic {topic!r} and brokers do not create topics by themselves: "
                f"create it with `aerobee topic create {topic}`",
            ) from None
        failures = await asyncio.gather(*(self._try_to_put(topic, data) for data in pattern.queues))
        failed = [failure for failure in failures if failure is not None]
        if failed and len(failed) == len(failures):
            raise failed[0]
        for failure in failed:  # the others serve it
            structlog.get_logger().warning(
                "topic not created on a broker", topic=topic, reason=failure.message
            )
        structlog.get_logger().info(
            "topic created", topic=topic, brokers=len(failures) - len(failed)
        )

    async def _try_to_put(self, topic: str, data: QueueData) -> MqError | None:
        try:
            await self._put(topic, data)
        except MqError as error:
            return error
        return None

    async def _put(self, topic: str, data: QueueData) -> None:
        config = TopicConfig(
            topic=topic,
            read_queue_count=data.read_queue_count,
            write_queue_count=data.write_queue_count,
            permission=READABLE | WRITABLE,
            attributes={MESSAGE_TYPE_ATTRIBUTE: "MIXED"},
        )
        # Whoever asks for a route changes no topic: it may have been made meanwhile, or a name
        # server that has just started may not know it yet.
        request = PutTopicRequest(topic=config, only_new=True)
        try:
            await self._brokers.ask(data.broker_name, PUT_TOPIC, request)
        except MqError as error:
            if error.code is not Code.INVALID_PARAMETER:
                raise
            request.topic.ClearField("attributes")
            await self._brokers.ask(data.broker_name, PUT_TOPIC, request)
