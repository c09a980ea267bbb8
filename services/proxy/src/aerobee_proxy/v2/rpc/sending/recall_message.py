"""RecallMessage: a producer withdraws a message before its delivery time.

The recall is durable before the answer.

Codes:

    ILLEGAL_TOPIC
    TOPIC_NOT_FOUND
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE   the topic does not accept delayed messages
    BAD_REQUEST                           the recall handle is invalid or of another topic, or the
                                          message was delivered or recalled before
    PROXY_TIMEOUT
    MASTER_PERSISTENCE_TIMEOUT

Differences from RocketMQ's proxy: the RPC is on by default, and a second recall fails. An invalid
handle is the caller's error, not an internal error.
"""

from __future__ import annotations

from aerobee.broker.v1.message_pb2 import RecallMessageRequest as BrokerRequest
from apache.rocketmq.v2.service_pb2 import RecallMessageRequest, RecallMessageResponse

from aerobee_proxy.cluster.broker_calls import FLUSH_TIMEOUT_S, BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.topic_route import DELAY, accepted_types, check_type
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.resources import topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import status
from aerobee_proxy.v2.validation.messages import recall_handle_of
from aerobee_wire.rpcs import RECALL_MESSAGE


async def recall_message(
    calls: BrokerCalls,
    route_cache: RouteCache,
    options: ProxyOptions,
    request: RecallMessageRequest,
    caller: Caller,
) -> RecallMessageResponse:
    topic = topic_name(request.topic)
    handle = recall_handle_of(request.recall_handle, topic)
    if options.enable_topic_message_type_check:
        check_type(DELAY, accepted_types(await route_cache.route(topic)), topic)
    answer = await calls.call(
        handle.broker_name,
        RECALL_MESSAGE,
        BrokerRequest(topic=topic, recall_handle=request.recall_handle),
        timeout_s=FLUSH_TIMEOUT_S,
    )
    return RecallMessageResponse(status=status(), message_id=answer.unique_message_id)
