"""Checks for pull and pop: permissions of broker, group and topic, queue, filter and memory."""

from __future__ import annotations

from dataclasses import replace

from aerobee_broker.config import BrokerOptions
from aerobee_broker.errors import InvalidParameter, NoPermission
from aerobee_broker.filter.filter import Filter
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.broker_permission import BrokerPermission
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_chassis.rpc.in_flight import WAIT_S, InFlight
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.queues.lite import LITE
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import retry_topic


class ReadAccess:
    def __init__(
        self,
        topics: TopicRegistry,
        groups: GroupRegistry,
        permission: BrokerPermission,
        options: BrokerOptions,
        in_flight: InFlight,
    ) -> None:
        self.in_flight = in_flight
        self._topics = topics
        self._groups = groups
        self.check_broker = permission.check_read
        self._sql_filters = options.enable_property_filter

    async def group(self, consumer_group: str) -> SubscriptionGroup:
        """Return the group; create it if it is new and may be created.

        Raises NoPermission if the group may not consume, and the errors of
        GroupRegistry.for_client.
        """
        group = self._groups.ready(consumer_group)  # the usual case: saves a coroutine
        if group is None:
            group = await self._groups.for_client(consumer_group)
        if not group.consume_enable:
            raise NoPermission(f"group {consumer_group} may not consume (consumeEnable is off)")
        return group

    def check_group(self, consumer_group: str) -> None:
        """Check that a group was not deleted while its call waited. Raises GroupNotExist."""
        self._groups.get(consumer_group)

    async def room(self) -> None:
        """Wait until unsent responses use less memory than their limit. Raises TooMuchInFlight."""
        if self.in_flight.is_full:  # rare: usually saves a coroutine
            await self.in_flight.room(WAIT_S)

    def topic(self, topic: str, queue_id: int | None) -> TopicConfig:
        """Return the topic after checking that it and its queue can be read.

        If `queue_id` is None, no queue is checked. Raises TopicNotExist, NoPermission, or
        InvalidParameter if the queue is not a readable queue of the topic.
        """
        config = self._topics.get(topic)
        if not config.readable:
            raise NoPermission(
                f"topic {topic} gives no messages (permission {config.permission}): "
                "give it read permission"
            )
        count = config.read_queue_count
        if queue_id is not None and not 0 <= queue_id < count:
            raise InvalidParameter(
                f"queue {queue_id} of {topic} is out of range: it has queues 0 to "
                f"{count - 1} to read here"
            )
        return config

    def retry_topic(self, consumer_group: str) -> TopicConfig | None:
        """Return the retry topic of a group if it exists and can be read."""
        config = self._topics.table.get(retry_topic(consumer_group))
        return config if config is not None and config.readable else None

    def is_ordered(self, consumer_group: str, topic: TopicConfig) -> bool:
        """Return whether the group consumes the topic in order, by the settings of both."""
        group = self._groups.table.get(consumer_group)
        order = group.consume_order if group is not None else ConsumeOrder.AUTO
        return order.holds_in(topic.message_type)

    @staticmethod
    def filter_in(topic: TopicConfig, wanted: Filter) -> Filter:
        """Return the filter to use in a topic. In a parent of lite topics, tags are ignored."""
        if wanted.tags_codes is None or topic.message_type != LITE:
            return wanted
        return replace(wanted, tags_codes=None)

    def check_filter(self, wanted: Filter) -> None:
        """Check that the broker allows the filter.

        Raises MqError with the code SUBSCRIPTION_PARSE_FAILED for an SQL92 filter if the broker
        does not allow such filters.
        """
        if wanted.condition is not None and not self._sql_filters:
            raise MqError(
                Code.SUBSCRIPTION_PARSE_FAILED,
                "this broker does not filter by SQL92 (enablePropertyFilter is off): use tags",
            )
