"""List lite topics of a parent topic, and the clients that subscribe: part of AsyncAdminClient."""

from __future__ import annotations

from aerobee.broker.v1 import lite_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import BrokerAdmin, numbers_fit
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.status import MqError, invalid_parameter


@checked_class
class LiteAdmin(BrokerAdmin):
    async def list_lite_topics(
        self,
        parent: str,
        *,
        group: str = "",
        limit: int = 100,
        lite_topic: str = "",
        silent: list[MqError] | None = None,
    ) -> d.LiteTopics:
        """Return lite topics of a topic of the type LITE, and the number of all that have messages.

        The lite topics with the most messages come first. If a group is given, the lite topics with
        the most unsettled messages come first.

        Args:
            parent: The topic of the type LITE.
            group: A group that is bound to the topic.
            limit: The maximum number of lite topics, 1 to 1,000.
            lite_topic: Only this lite topic.
            silent: See `list_topics`.

        Returns:
            The lite topics, and their total number.

        Raises:
            MqError: TOPIC_NOT_EXIST, SUBSCRIPTION_GROUP_NOT_EXIST, or INVALID_PARAMETER if the
                topic is not of the type LITE, the group is not bound to it, or the limit is
                invalid.
        """
        with numbers_fit():
            request = lite_pb2.ListLiteTopicsRequest(
                parent=parent, consumer_group=group, limit=limit, lite_topic=lite_topic
            )
        if limit < 1:
            raise invalid_parameter(f"limit is {limit}: give 1 to 1000")
        brokers = await self._brokers.of_topic(parent, silent=silent)
        answers = await self._brokers.ask_each(
            brokers, rpcs.LIST_LITE_TOPICS, request, silent=silent
        )
        topics = [
            d.LiteTopicDescription.of(name, info)
            for name, answer in answers.items()
            for info in answer.lite_topics
        ]
        topics.sort(key=lambda each: (-each.lag, -each.messages, each.lite_topic))
        total = sum(answer.total for answer in answers.values())
        return d.LiteTopics(topics=tuple(topics[:limit]), total=total)

    async def list_lite_clients(
        self, parent: str, lite_topic: str = "", *, silent: list[MqError] | None = None
    ) -> list[d.LiteClientDescription]:
        """Return the clients that subscribe to lite topics of `parent`, sorted by group and id.

        Args:
            parent: The topic of the type LITE.
            lite_topic: Only clients that get this lite topic.
            silent: See `list_topics`.

        Returns:
            The clients.

        Raises:
            MqError: TOPIC_NOT_EXIST, or INVALID_PARAMETER if the topic is not of the type LITE.
        """
        request = lite_pb2.ListLiteClientsRequest(parent=parent, lite_topic=lite_topic)
        brokers = await self._brokers.of_topic(parent, silent=silent)
        answers = await self._brokers.ask_each(
            brokers, rpcs.LIST_LITE_CLIENTS, request, silent=silent
        )
        return d.merged(
            d.LiteClientDescription.of(name, info)
            for name, answer in answers.items()
            for info in answer.clients
        )
