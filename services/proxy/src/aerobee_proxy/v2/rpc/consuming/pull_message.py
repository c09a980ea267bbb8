"""PullMessage: messages of one queue from an offset on; the client keeps the offset.

The stream: status, messages, next offset. Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
ILLEGAL_OFFSET, ILLEGAL_FILTER_EXPRESSION, ILLEGAL_POLLING_TIME, MESSAGE_NOT_FOUND, TOPIC_NOT_FOUND,
FORBIDDEN. RocketMQ's proxy does not serve it.
"""

from __future__ import annotations

from aerobee.broker.v1 import message_pb2 as broker
from apache.rocketmq.v2.definition_pb2 import Code
from apache.rocketmq.v2.service_pb2 import PullMessageRequest, PullMessageResponse

from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import status
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.translate import Rendering, subscription
from aerobee_proxy.v2.validation import check_offset, filter_of, group_name, polling_ms, topic_name
from aerobee_wire import properties
from aerobee_wire.record import iter_records
from aerobee_wire.rpcs import PULL
from aerobee_wire.tags import parse_expression

ANSWER_S = 5.0  # for the broker to answer once the poll is over

_CODES = {
    broker.NO_NEW_MESSAGE: (Code.MESSAGE_NOT_FOUND, "no new message"),
    broker.NO_MATCHED_MESSAGE: (Code.MESSAGE_NOT_FOUND, "no message matches: go on at next_offset"),
    broker.OFFSET_MOVED: (
        Code.ILLEGAL_OFFSET,
        "the offset lies outside the queue: go on at next_offset",
    ),
}


async def pull_message(parts: Parts, request: PullMessageRequest, caller: Caller) -> None:
    poll_ms = polling_ms(
        request.long_polling_timeout if request.HasField("long_polling_timeout") else None,
        caller.call.time_remaining_s(),
        caller.session.request_timeout_ms,
        parts.options,
    )
    answer = await parts.brokers.ask(
        request.message_queue.broker.name,
        PULL,
        _translated(request, poll_ms, caller.client_id),
        timeout_s=poll_ms / 1_000 + ANSWER_S,
    )
    kind, expression = filter_of(request.filter_expression)
    # Brokers compare the hash codes of tags only; SQL92 they decide themselves.
    wanted = parse_expression(expression) if kind == "TAG" else frozenset()
    records = [
        record
        for record in iter_records(answer.records)
        if not wanted or record.properties.get(properties.TAGS) in wanted
    ]
    found = (
        _CODES[broker.NO_MATCHED_MESSAGE]
        if answer.status == broker.FOUND and not records
        else _CODES.get(answer.status, (Code.OK, ""))
    )
    responses = [PullMessageResponse(status=status(*found)).SerializeToString()]
    namespace = request.message_queue.topic.resource_namespace
    response = PullMessageResponse()
    limit = parts.options.max_message_size
    rendering = Rendering(response.message, namespace=namespace, max_body_size=limit)
    for record in records:
        rendering.put(record)
        responses.append(response.SerializeToString())
    responses.append(PullMessageResponse(next_offset=answer.next_begin_offset).SerializeToString())
    await caller.call.write_all(responses, more_follows=True)


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
