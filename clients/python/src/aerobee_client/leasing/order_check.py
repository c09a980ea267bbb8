"""Warn if a consumer was made for ordered messages, but its brokers do not keep the order."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from aerobee.broker.v1.admin_pb2 import GetGroupRequest

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_wire import rpcs
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3.0
MESSAGE_TYPE = "message.type"  # an attribute of a topic


async def warn_without_order(
    instance: ClientInstance, consumer_group: str, topics: Iterable[str]
) -> None:
    """Log a warning for each topic that the group does not receive in order.

    If a broker does not answer, its topic is skipped.
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
                "%s consumes topic %s with fifo=True, and in no order: the topic is not of the "
                "type FIFO, or the group's order is off (`aerobee topic create --type fifo`, "
                "`aerobee group create --order on`)",
                consumer_group,
                topic,
            )
