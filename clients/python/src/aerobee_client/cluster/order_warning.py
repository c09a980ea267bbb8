"""Log a warning if consumer, group and topic disagree about ordering."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from aerobee.broker.v1.admin_pb2 import GetGroupRequest

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.message_queue import MessageQueue
from aerobee_wire import rpcs
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3.0
MESSAGE_TYPE, FIFO = "message.type", "FIFO"  # an attribute of a topic


class FifoWarning:
    """Logs one warning for each topic of the type FIFO that a concurrent consumer consumes.

    Call the object with the queues that the consumer has acquired.
    """

    def __init__(self, instance: ClientInstance, consumer_group: str) -> None:
        self._instance = instance
        self._consumer_group = consumer_group
        self._known: set[str] = set()

    async def __call__(self, queues: Iterable[MessageQueue]) -> None:
        for topic in sorted({queue.topic for queue in queues} - self._known):
            self._known.add(topic)
            try:
                route = await self._instance.routes.route(topic)
            except MqError:
                continue  # it was deleted
            if any(data.attributes.get(MESSAGE_TYPE) == FIFO for data in route.queues):
                log.warning(
                    "%s consumes topic %s concurrently, whose messages are meant to be consumed in "
                    "order (type FIFO): give the consumer orderly=True",
                    self._consumer_group,
                    topic,
                )


async def warn_without_order(
    instance: ClientInstance, consumer_group: str, topics: Iterable[str]
) -> None:
    """Log a warning for each topic that the group does not receive in order.

    A topic is skipped if its broker does not answer.
    """
    for topic in topics:
        try:
            route = await instance.routes.route(topic)
            if not route.queues:
                continue
            data = route.queues[0]
            answer = await instance.call_broker(
                data.broker_name,
                rpcs.GET_GROUP,
                GetGroupRequest(consumer_group=consumer_group),
                timeout_s=CALL_TIMEOUT_S,
            )
            group = answer.group
            order = ConsumeOrder.of(group.order, orderly=group.consume_message_orderly)
        except (MqError, ValueError) as error:
            log.debug("order of %s in topic %s not known: %s", consumer_group, topic, error)
            continue
        if not order.holds_in(data.attributes.get(MESSAGE_TYPE, "")):
            log.warning(
                "%s receives topic %s with fifo=True, but its messages are not ordered: the topic "
                "is not of the type FIFO, or the group's order is off (`aerobee topic create "
                "--type fifo`, `aerobee group create --order on`)",
                consumer_group,
                topic,
            )
