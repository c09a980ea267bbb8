"""RecallMessage: a message that waits for its delivery time is taken back; durable when answered.

Codes: ILLEGAL_TOPIC, TOPIC_NOT_FOUND, MESSAGE_PROPERTY_CONFLICT_WITH_TYPE (a topic without delayed
messages), BAD_REQUEST (no recall handle, or one of another topic; the message was delivered, or
recalled before), PROXY_TIMEOUT, MASTER_PERSISTENCE_TIMEOUT. Differs from RocketMQ's proxy: always
on; a bad handle is the caller's mistake, not an internal error; a second recall fails.
"""

from __future__ import annotations

from apache.rocketmq.v2.definition_pb2 import MessageType
from apache.rocketmq.v2.service_pb2 import RecallMessageRequest, RecallMessageResponse

from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import status
from aerobee_proxy.v2.routes import accepted_types
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.validation import check_type, recall_handle_of, topic_name


async def recall_message(
    parts: Parts, request: RecallMessageRequest, caller: Caller
) -> RecallMessageResponse:
    topic = topic_name(request.topic)
    handle = recall_handle_of(request.recall_handle, topic)
    if parts.options.enable_topic_message_type_check:
        check_type(MessageType.DELAY, accepted_types(await parts.topology.route(topic)), topic)
    message_id = await parts.brokers.recall(handle.broker_name, topic, request.recall_handle)
    return RecallMessageResponse(status=status(), message_id=message_id)
