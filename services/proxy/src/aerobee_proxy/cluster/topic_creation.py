"""Create topics when a client first asks for their route.

This happens only if the proxy and the brokers allow it. Brokers that create topics automatically
register the topic TBW102. A topic is created on all these brokers at once, so that they all share
the messages. The topic gets the type of its first message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog
from aerobee.broker.v1.admin_pb2 import PutTopicRequest, SpecifyMessageTypeRequest
from aerobee.namesrv.v1.namesrv_pb2 import QueueData, TopicConfig, TopicRoute

from aerobee_chassis.per_minute import PerMinute
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.topic_route import (
    MESSAGE_TYPE_ATTRIBUTE,
    UNSPECIFIED,
    untyped_brokers,
)
from aerobee_proxy.cluster.topic_route import message_type as type_of
from aerobee_wire import topics
from aerobee_wire.route import READ, WRITE
from aerobee_wire.rpcs import PUT_TOPIC, SPECIFY_MESSAGE_TYPE
from aerobee_wire.status import Code, MqError

RETRY_S = 1.0  # pause after a broker did not accept the type of a topic
OLD_S = 60.0  # pause for a broker that cannot set types; it may be updated meanwhile


class TopicCreation:
    """Creates topics and sets their types.

    `enabled` returns the option `autoCreateTopics`. If it is true, the first use may create a
    topic. `creations` counts them by creator.
    """

    def __init__(
        self,
        calls: BrokerCalls,
        route_cache: RouteCache,
        *,
        enabled: Callable[[], bool],
        creations: PerMinute,
    ) -> None:
        self._creations = creations
        self._calls = calls
        self._route_cache = route_cache
        self._enabled = enabled
        # For each broker, the earliest time of the next request to set a type, in the event loop's
        # time.
        self._retry_s: dict[str, float] = {}  # brokers that failed
        self._left_alone_s: dict[str, float] = {}  # brokers whose version is too old

    async def route(self, topic: str, creator: str = "") -> TopicRoute:
        """Return the route of a topic. Create the topic if that is allowed.

        `creator` is the name of a user, or "". Creations without a user are not limited.

        Raises MqError, with the code TOPIC_NOT_EXIST if the topic may not be created. The error
        text then says how to create it.
        """
        try:
            return await self._route_cache.route(topic)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
            if not await self._route_cache.brokers():
                raise MqError(
                    Code.BROKER_UNREACHABLE,
                    f"no broker is registered, so nothing is known of topic {topic!r}: start a "
                    "broker (aerobee broker), or retry when it is back",
                ) from None
            if topics.group_of(topic) is not None:
                raise
        if not self._enabled():
            raise _unknown(topic, "this proxy does not create topics (autoCreateTopics is off)")
        if creator and (wait_ms := self._creations.count(creator)):
            raise MqError(
                Code.FLOW_CONTROL,
                f"user {creator!r} created {self._creations.limit} topics in a minute by using "
                "them (maxAutoCreations): retry later, or create them with 'aerobee topic create'",
                retry_after_ms=wait_ms,
                about="maxAutoCreations",
            )
        await self._create(topic)
        try:
            return await self._route_cache.route(topic)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
        # The answer may belong to a shared request from before the topic was created, so ask again.
        return await self._route_cache.route(topic)

    async def _create(self, topic: str) -> None:
        try:
            template = await self._route_cache.route(topics.AUTO_CREATE_TOPIC)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
            raise _unknown(topic, "brokers do not create topics by themselves") from None
        outcomes = await asyncio.gather(*(self._put(topic, data) for data in template.queues))
        failures = [failure for failure in outcomes if failure is not None]
        if failures and len(failures) == len(outcomes):
            raise failures[0]
        for failure in failures:  # the other brokers serve the topic
            structlog.get_logger().warning("topic_not_created", topic=topic, reason=failure.message)
        structlog.get_logger().info(
            "topic_created", topic=topic, brokers=len(outcomes) - len(failures)
        )

    async def _put(self, topic: str, data: QueueData) -> MqError | None:
        """Create a topic on one broker. Return the error of the broker, or None on success."""
        config = TopicConfig(
            topic=topic,
            read_queue_count=data.read_queue_count,
            write_queue_count=data.write_queue_count,
            permission=READ | WRITE,
            attributes={MESSAGE_TYPE_ATTRIBUTE: UNSPECIFIED},
        )
        # A request for a route must not change an existing topic. The topic may have been created
        # meanwhile, or a name server that has just started may not know it yet.
        request = PutTopicRequest(topic=config, only_new=True)
        return await self._calls.try_call(data.broker_name, PUT_TOPIC, request)

    async def specify_type(self, topic: str, message_type: str) -> None:
        """Set the type of a topic on every broker where it has no type yet.

        `message_type` is the type of the first message. The type that the first broker answers with
        is used for all brokers. All proxies ask the brokers in the same order, so they agree.

        A broker that does not answer is asked again at later messages. Each broker needs the type,
        which decides whether consumers get its messages in order. Raises MqError if no broker
        answers.
        """
        route = await self._route_cache.route(topic)
        known = type_of(route)
        decided = known != UNSPECIFIED
        request = SpecifyMessageTypeRequest(
            topic=topic, message_type=known if decided else message_type
        )
        refusal: MqError | None = None
        for name in self._to_specify(untyped_brokers(route), decided=decided):
            try:
                answer = await self._calls.call(name, SPECIFY_MESSAGE_TYPE, request)
            except MqError as error:
                if error.code is Code.REQUEST_CODE_NOT_SUPPORTED:
                    self._left_alone_s[name] = _now_s() + OLD_S
                    continue
                refusal = error
                self._retry_s[name] = _now_s() + RETRY_S
                structlog.get_logger().warning(
                    "topic_type_not_taken", topic=topic, broker=name, reason=error.message
                )
            else:
                request.message_type, decided = answer.message_type, True
                self._route_cache.expire(topic)
        if refusal is not None and not decided:
            raise refusal

    def _to_specify(self, untyped: Sequence[str], *, decided: bool) -> list[str]:
        """Return the brokers of `untyped` on which to set the type of the topic now.

        Skip brokers of an older version. If the type is already decided, also skip brokers that
        have just failed, so that messages do not wait for them.
        """
        now_s = _now_s()
        found = [name for name in untyped if self._left_alone_s.get(name, 0.0) <= now_s]
        return [name for name in found if not decided or self._retry_s.get(name, 0.0) <= now_s]


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _unknown(topic: str, reason: str) -> MqError:
    return MqError(
        Code.TOPIC_NOT_EXIST,
        f"there is no topic {topic!r} and {reason}: create it with `aerobee topic create {topic}`",
    )
