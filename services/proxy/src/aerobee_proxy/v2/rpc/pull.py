"""Handle PullMessage, GetOffset, UpdateOffset and QueryOffset.

These RPCs serve consumers that manage their own offsets; RocketMQ's proxy does not support them.
GetOffset and UpdateOffset read and set the offset of a group in a queue. QueryOffset returns an
offset of the queue itself: its beginning, its end, or the offset at a time.

Codes of GetOffset, UpdateOffset and QueryOffset: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
ILLEGAL_OFFSET, OFFSET_NOT_FOUND, TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND, BAD_REQUEST.
"""

from __future__ import annotations

from aerobee.broker.v1 import message_pb2 as broker
from aerobee.broker.v1 import offset_pb2
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code, MessageQueue, QueryOffsetPolicy
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import (
    GetOffsetRequest,
    GetOffsetResponse,
    PullMessageRequest,
    PullMessageResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    UpdateOffsetRequest,
    UpdateOffsetResponse,
)

from aerobee_chassis.rpc.in_flight import WAIT_S, InFlight
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.config import CurrentOptions
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import Refused, status
from aerobee_proxy.v2.translate import MessageEncoder, subscription
from aerobee_proxy.v2.validation import check_offset, filter_of, milliseconds, polling_ms
from aerobee_wire import properties
from aerobee_wire.record import iter_records
from aerobee_wire.rpcs import (
    GET_QUEUE_OFFSETS,
    QUERY_CONSUMER_OFFSETS,
    SEARCH_OFFSET,
    UPDATE_CONSUMER_OFFSETS,
)
from aerobee_wire.tags import parse_expression

ANSWER_S = 5.0  # time for the broker to answer after the long poll has ended

_CODES = {
    broker.NO_NEW_MESSAGE: (Code.MESSAGE_NOT_FOUND, "no new message"),
    broker.NO_MATCHED_MESSAGE: (
        Code.MESSAGE_NOT_FOUND,
        "no message matches: continue at next_offset",
    ),
    broker.OFFSET_MOVED: (
        Code.ILLEGAL_OFFSET,
        "the offset lies outside the queue: continue at next_offset",
    ),
}


async def pull_message(
    calls: BrokerCalls,
    current: CurrentOptions,
    in_flight: InFlight,
    request: PullMessageRequest,
    caller: Caller,
) -> None:
    """Handle PullMessage: return messages of one queue, starting at an offset.

    The stream consists of a status, the messages, and the offset to pull next. The proxy does not
    store the offset.

    Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_OFFSET, ILLEGAL_FILTER_EXPRESSION,
    ILLEGAL_POLLING_TIME, MESSAGE_NOT_FOUND, TOPIC_NOT_FOUND, FORBIDDEN.
    """
    options = current()
    if in_flight.is_full:
        await in_flight.room(WAIT_S)
    poll_ms = polling_ms(
        request.long_polling_timeout if request.HasField("long_polling_timeout") else None,
        caller.call.time_remaining_s(),
        caller.session.request_timeout_ms,
        options,
    )
    answer = await calls.pull(
        request.message_queue.broker.name,
        _translated(request, poll_ms, caller.client_id),
        timeout_s=poll_ms / 1_000 + ANSWER_S,
    )
    kind, expression = filter_of(request.filter_expression)
    # Brokers compare only the hash codes of tags. SQL92 filters are evaluated by brokers.
    tags = parse_expression(expression) if kind == "TAG" else frozenset()
    records = [
        record
        for record in iter_records(answer.records)
        if not tags or record.properties.get(properties.TAGS) in tags
    ]
    answered = (
        _CODES[broker.NO_MATCHED_MESSAGE]
        if answer.status == broker.FOUND and not records
        else _CODES.get(answer.status, (Code.OK, ""))
    )
    responses = [PullMessageResponse(status=status(*answered)).SerializeToString()]
    namespace = request.message_queue.topic.resource_namespace
    response = PullMessageResponse()
    limit = options.max_message_size
    encoder = MessageEncoder(response.message, namespace=namespace, max_body_size=limit)
    for record in records:
        encoder.encode(record)
        responses.append(response.SerializeToString())
    responses.append(PullMessageResponse(next_offset=answer.next_begin_offset).SerializeToString())
    in_flight.check_room(sum(map(len, responses)))
    await caller.call.write_all(responses)
    caller.received(len(records), len(answer.records))


def _translated(request: PullMessageRequest, poll_ms: int, client_id: str) -> broker.PullRequest:
    queue = request.message_queue
    topic, group = topic_name(queue.topic), group_name(request.group)
    check_offset(request.offset)
    filter_of(request.filter_expression)
    return broker.PullRequest(
        consumer_group=group,
        topic=topic,
        queue_id=queue.id,
        queue_offset=request.offset,
        max_messages=request.batch_size,
        suspend_timeout_ms=poll_ms,
        subscription=subscription(topic, request.filter_expression),
        client_id=client_id,
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
        Code.OFFSET_NOT_FOUND,
        f"group {group} has no offset in queue {queue.id} of {topic}: begin at an offset from "
        "QueryOffset",
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
            raise Refused(
                Code.BAD_REQUEST, "the policy is unknown or lacks its timestamp: set both"
            )
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
    raise Refused(
        Code.OFFSET_NOT_FOUND,
        f"topic {topic} has no queue {queue.id} on broker {queue.broker.name[:64]}: query its "
        "route again",
    )


async def _offset_at(calls: BrokerCalls, queue: MessageQueue, topic: str, epoch_ms: int) -> int:
    answer = await calls.ask(
        queue.broker.name,
        SEARCH_OFFSET,
        offset_pb2.SearchOffsetRequest(topic=topic, queue_id=queue.id, timestamp_ms=epoch_ms),
    )
    return int(answer.queue_offset)
