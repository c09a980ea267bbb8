"""ReceiveMessage: messages of one broker on lease.

The stream: status, messages, delivery timestamp; also when there is nothing or something is wrong.
Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_FILTER_EXPRESSION, ILLEGAL_INVISIBLE_TIME,
ILLEGAL_POLLING_TIME, FORBIDDEN, MESSAGE_NOT_FOUND, TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND,
TOO_MANY_REQUESTS, PROXY_TIMEOUT. The queue that the client names is not heeded but for its broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog
from aerobee.broker.v1.pop_pb2 import PopRequest, PopResponse
from apache.rocketmq.v2.definition_pb2 import Code
from apache.rocketmq.v2.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse

from aerobee_proxy.cluster.leases import handle_for, handles_of, invisible_for, key_of
from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import Refused, status
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.translate import Rendering, subscription
from aerobee_proxy.v2.validation import (
    filter_of,
    group_name,
    polling_ms,
    receive_duration_ms,
    topic_name,
)
from aerobee_wire.receipt_handle import ReceiptHandle
from aerobee_wire.record import Record, iter_records
from aerobee_wire.rpcs import POP
from aerobee_wire.status import MqError

_OK = ReceiveMessageResponse(status=status()).SerializeToString()
ANSWER_S = 5.0  # for the broker to answer once the poll is over


async def receive_message(parts: Parts, request: ReceiveMessageRequest, caller: Caller) -> None:
    pop = await _pop_request(parts, request, caller)
    answer = await _popped(parts, request.message_queue.broker.name, pop)
    if not answer.records:
        raise Refused(Code.MESSAGE_NOT_FOUND, "no new message")
    records = list(iter_records(answer.records, check_crc=False))  # checked by the broker

    def handles() -> Iterator[ReceiptHandle]:
        for record, attempt in zip(records, answer.delivery_attempts, strict=True):
            yield handle_for(record, attempt, pop, answer)

    responses = _responses(parts, request, pop, answer, records)
    if request.auto_renew:
        # Before the client has them: it may settle the first while the last is still on its way.
        for record, handle in zip(records, handles(), strict=True):
            message_id = record.unique_message_id or record.offset_message_id
            parts.renewals.hold(handle, caller.client_id, message_id, caller.session.user)
    whole = False
    try:
        await caller.call.write_all(responses, more_follows=True)
        whole = True
    finally:
        if not whole:
            # Nobody knows what of it arrived: all of it comes again.
            for handle in handles():
                parts.renewals.release(key_of(handle))
            parts.background.run(_give_back(parts, list(handles())))
    parts.counts.received += len(records)


def _responses(
    parts: Parts,
    request: ReceiveMessageRequest,
    pop: PopRequest,
    answer: PopResponse,
    records: list[Record],
) -> list[bytes]:
    response = ReceiveMessageResponse()
    rendering = Rendering(
        response.message,
        namespace=request.message_queue.topic.resource_namespace,
        max_body_size=parts.options.max_message_size,
    )
    handle = handles_of(pop, answer)
    responses = [_OK]
    for record, attempt in zip(records, answer.delivery_attempts, strict=True):
        rendering.put(record, handle(record, attempt), attempt)
        responses.append(response.SerializeToString())
    return responses


async def _popped(parts: Parts, broker_name: str, pop: PopRequest) -> PopResponse:
    """A broker that is away is waited for instead of for messages: told at once, SDKs would ask
    again after 1 s, and one of them 50 times a second."""

    def for_the_rest(left_s: float) -> tuple[PopRequest, float]:
        pop.poll_duration_ms = round(left_s * 1_000)
        return pop, left_s + ANSWER_S

    ends = asyncio.get_running_loop().time() + pop.poll_duration_ms / 1_000
    return await parts.brokers.ask_until(broker_name, POP, for_the_rest, ends=ends)


async def _pop_request(parts: Parts, request: ReceiveMessageRequest, caller: Caller) -> PopRequest:
    topic, group = topic_name(request.message_queue.topic), group_name(request.group)
    filter_of(request.filter_expression)
    fifo = (await parts.groups.policy(group)).fifo
    return PopRequest(
        consumer_group=group,
        topic=topic,
        max_messages=min(
            max(request.batch_size, 1), parts.options.grpc_client_consumer_long_polling_batch_size
        ),
        invisible_duration_ms=receive_duration_ms(
            request.invisible_duration if request.HasField("invisible_duration") else None,
            request.auto_renew,
            parts.options,
        ),
        poll_duration_ms=polling_ms(
            request.long_polling_timeout if request.HasField("long_polling_timeout") else None,
            caller.call.time_remaining_s(),
            caller.session.request_timeout_ms,
            parts.options,
        ),
        subscription=subscription(topic, request.filter_expression),
        fifo=fifo,
        attempt_id=request.attempt_id if fifo else "",
    )


async def _give_back(parts: Parts, handles: list[ReceiptHandle]) -> None:
    """Visible at once, and not counted as a delivery."""
    outcomes = await asyncio.gather(
        *(
            parts.brokers.change(handle.broker_name, invisible_for(handle, 0, counted=False))
            for handle in handles
        ),
        return_exceptions=True,
    )
    for outcome in outcomes:
        if isinstance(outcome, MqError):
            structlog.get_logger().warning("lease not given back", reason=outcome.message)
        elif isinstance(outcome, BaseException):
            raise outcome
