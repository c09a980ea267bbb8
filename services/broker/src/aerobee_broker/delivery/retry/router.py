"""Retries that a consumer sends to its retry topic itself.

RocketMQ's consumers do this if a send-back fails. The messages are stored there, or in the
dead-letter topic.
"""

from __future__ import annotations

from aerobee_broker.delivery.retry import policy
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import topics as names


class RetryRouter:
    def __init__(
        self, topics: TopicRegistry, groups: GroupRegistry, metrics: BrokerMetrics
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._metrics = metrics

    async def route(
        self, message: NewMessage, properties: dict[str, str], reconsume_times: int
    ) -> bool:
        """Make a message to a retry topic a dead letter if its last attempt has failed.

        Returns whether it did. If so, its decoded `properties` were changed and must be encoded
        again. Raises GroupNotExist, InvalidParameter.
        """
        group = self._groups.get(names.group_of(message.topic) or "")
        if reconsume_times < 0:
            raise InvalidParameter(f"reconsume_times {reconsume_times} is below 0")
        message.reconsume_times = reconsume_times
        max_times = props.whole_number(properties.get(props.MAX_RECONSUME_TIMES, ""))
        if max_times is not None and max_times < 0:
            max_times = None
        if not policy.is_last_attempt(reconsume_times, group, max_times):
            return False
        topic = names.dead_letter_topic(group.consumer_group)
        await self._topics.for_group(topic)
        message.topic, message.queue_id = topic, 0
        properties.pop(props.DELAY, None)
        policy.with_dead_letter_origin(properties)
        self._metrics.dead_lettered(group.consumer_group, 1)
        return True
