"""Check SQL92 expressions at a broker, because the client has no parser."""

from __future__ import annotations

import logging

from aerobee.broker.v1 import message_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_wire import rpcs
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3.0


async def check_expression(
    instance: ClientInstance, subscription: message_pb2.Subscription
) -> None:
    """Check an SQL92 expression by a pull of one message from the first broker that answers.

    Raises MqError with the code SUBSCRIPTION_PARSE_FAILED if the expression is invalid. If no
    broker answers, the call returns without a check, and the members of the group get the error
    later.
    """
    request = message_pb2.PullRequest(
        topic=subscription.topic, subscription=subscription, max_messages=1, browse=True
    )
    for address in await _masters(instance):
        try:
            await instance.transport.call(address, rpcs.PULL, request, timeout_s=CALL_TIMEOUT_S)
        except MqError as error:
            if error.code is Code.SUBSCRIPTION_PARSE_FAILED:
                raise
            if error.code is not Code.TOPIC_NOT_EXIST:  # the broker reads the expression first
                log.info("expression not checked at %s: %s", address, error)
                continue
        return


async def _masters(instance: ClientInstance) -> list[str]:
    """Return the masters of the known routes, or of the cluster if no route is known."""
    known = instance.routes.master_addresses()
    if known:
        return sorted(known)
    request = namesrv_pb2.GetClusterInfoRequest()
    try:
        cluster = await instance.namesrv.call(rpcs.GET_CLUSTER_INFO, request)
    except MqError as error:
        log.info("brokers not known: %s", error)
        return []
    return [
        broker.addresses[MASTER_ID] for broker in cluster.brokers if MASTER_ID in broker.addresses
    ]
