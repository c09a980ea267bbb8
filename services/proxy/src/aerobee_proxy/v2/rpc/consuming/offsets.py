"""GetOffset, UpdateOffset, QueryOffset: offsets of a group in a queue, and of the queue itself.

Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_OFFSET, OFFSET_NOT_FOUND, TOPIC_NOT_FOUND,
CONSUMER_GROUP_NOT_FOUND, BAD_REQUEST. RocketMQ's proxy does not serve these RPCs.
"""

from __future__ import annotations

from aerobee.broker.v1 import offset_pb2
from apache.rocketmq.v2.definition_pb2 import Code, MessageQueue, QueryOffsetPolicy
from apache.rocketmq.v2.service_pb2 import (
    GetOffsetRequest,
    GetOffsetResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    UpdateOffsetRequest,
    UpdateOffsetResponse,
)

from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import Refused, status
from aerobee_proxy.v2.validation.consumption import check_offset
from aerobee_proxy.v2.validation.units import milliseconds
from aerobee_wire.rpcs import (
    GET_QUEUE_OFFSETS,
    QUERY_CONSUMER_OFFSETS,
    SEARCH_OFFSET,
    UPDATE_CONSUMER_OFFSETS,
)


async def get_offset(
    calls: BrokerCalls, request: GetOffsetRequest, caller: Caller
) -> GetOffsetResponse:
    queue = request.message_queue
    topic, group = topic_name(queue.topic), group_name(request.group)
    answer = await calls.call(
        queue.broker.name,
        QUERY_CONSUMER_OFFSETS,
        offset_pb2.QueryConsumerOffsetsRequest(consumer_group=group, topic=topic),
    )
    for committed in answer.offsets:
        if (committed.topic, committed.queue_id) == (topic, queue.id):
            return GetOffsetResponse(status=status(), offset=committed.queue_offset)
    raise Refused(
        Code.OFFSET_NOT_FOUND, f"group {group} has no offset in queue {queue.id} of {topic}"
    )


async def update_offset(
    calls: BrokerCalls, request: UpdateOffsetRequest, caller: Caller
) -> UpdateOffsetResponse:
    queue = request.message_queue
    topic, group = topic_name(queue.topic), group_name(request.group)
    check_offset(request.offset)
    offset = offset_pb2.QueueOffset(topic=topic, queue_id=queue.id, queue_offset=request.offset)
    await calls.call(
        queue.broker.name,
        UPDATE_CONSUMER_OFFSETS,
        offset_pb2.UpdateConsumerOffsetsRequest(consumer_group=group, offsets=[offset]),
    )
    return UpdateOffsetResponse(status=status())


async def query_offset(
    calls: BrokerCalls, request: QueryOffsetRequest, caller: Caller
) -> QueryOffsetResponse:
    queue = request.message_queue
    topic = topic_name(queue.topic)
    match request.query_offset_policy:
        case QueryOffsetPolicy.BEGINNING:
            offset = (await _bounds(calls, queue, topic)).min_offset
        case QueryOffsetPolicy.END:
            offset = (await _bounds(calls, queue, topic)).max_offset
        case QueryOffsetPolicy.TIMESTAMP if request.HasField("timestamp"):
            offset = await _offset_at(calls, queue, topic, milliseconds(request.timestamp))
        case _:
            raise Refused(Code.BAD_REQUEST, "the policy is unknown, or lacks its timestamp")
    return QueryOffsetResponse(status=status(), offset=offset)


async def _bounds(calls: BrokerCalls, queue: MessageQueue, topic: str) -> offset_pb2.QueueBounds:
    answer = await calls.ask(
        queue.broker.name,
        GET_QUEUE_OFFSETS,
        offset_pb2.GetQueueOffsetsRequest(topic=topic, queue_ids=[queue.id]),
    )
    for bounds in answer.queues:
        if bounds.queue_id == queue.id:
            return bounds
    raise Refused(Code.OFFSET_NOT_FOUND, f"topic {topic} has no queue {queue.id} there")


async def _offset_at(calls: BrokerCalls, queue: MessageQueue, topic: str, epoch_ms: int) -> int:
    answer = await calls.ask(
        queue.broker.name,
        SEARCH_OFFSET,
        offset_pb2.SearchOffsetRequest(topic=topic, queue_id=queue.id, timestamp_ms=epoch_ms),
    )
    return int(answer.queue_offset)
