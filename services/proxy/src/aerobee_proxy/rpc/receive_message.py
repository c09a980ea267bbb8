"""ReceiveMessage: messages of one broker on lease.

The stream: status, messages, delivery timestamp; also when there is nothing or something is wrong.
Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_FILTER_EXPRESSION, ILLEGAL_INVISIBLE_TIME,
ILLEGAL_POLLING_TIME, FORBIDDEN, MESSAGE_NOT_FOUND, TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND,
TOO_MANY_REQUESTS, PROXY_TIMEOUT. The queue that the client names is not heeded but for its broker.
"""

from __future__ import annotations

import asyncio

import structlog
from aerobee.broker.v1.pop_pb2 import PopRequest, PopResponse
from apache.rocketmq.v2.definition_pb2 import Code
from apache.rocketmq.v2.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse

from aerobee_proxy.errors import Refused, status
from aerobee_proxy.leases import handle_for, invisible_for
from aerobee_proxy.parts import Parts
from aerobee_proxy.rpc.pipeline import Caller
from aerobee_proxy.rpcs import POP
from aerobee_proxy.translate import from_record, subscription
from aerobee_proxy.validation import (
    filter_of,
    group_name,
    polling_ms,
    receive_duration_ms,
    topic_name,
)
from aerobee_wire.receipt_handle import ReceiptHandle, encode
from aerobee_wire.record import iter_records
from aerobee_wire.status import MqError

ANSWER_S = 5.0  # for the broker to answer once the poll is over


async def receive_message(parts: Parts, request: ReceiveMessageRequest, caller: Caller) -> None:
    pop = await _pop_request(parts, request, caller)
    answer = await _popped(parts, request.message_queue.broker.name, pop)
    found: list[tuple[ReceiptHandle, ReceiveMessageResponse]] = []
    attempts = iter(answer.delivery_attempts)
    namespace = request.message_queue.topic.resource_namespace
    for record in iter_records(answer.records, check_crc=False):  # checked by the broker
        attempt = next(attempts)
        handle = handle_for(
            record, answer, attempt, topic=pop.topic, group=pop.consumer_group, fifo=pop.fifo
        )
        response = ReceiveMessageResponse()
        from_record(
            record,
            namespace=namespace,
            max_body_size=parts.options.max_message_size,
            receipt_handle=encode(handle),
            delivery_attempt=attempt,
            into=response.message,
        )
        found.append((handle, response))
    if not found:
        raise Refused(Code.MESSAGE_NOT_FOUND, "no new message")
    await _deliver(parts, request, caller, found)


async def _popped(parts: Parts, broker_name: str, pop: PopRequest) -> PopResponse:
    """A broker that is away is waited for instead of for messages: told at once, SDKs would ask
    again after 1 s, and one of them 50 times a second."""

    def for_the_rest(left_s: float) -> tuple[PopRequest, float]:
        pop.poll_duration_ms = round(left_s * 1_000)
        return pop, left_s + ANSWER_S

    ends = asyncio.get_running_loop().time() + pop.poll_duration_ms / 1_000
    return await parts.brokers.ask_until(broker_name, POP, for_the_rest, ends=ends)


async def _deliver(
    parts: Parts,
    request: ReceiveMessageRequest,
    caller: Caller,
    found: list[tuple[ReceiptHandle, ReceiveMessageResponse]],
) -> None:
    responses = [ReceiveMessageResponse(status=status()), *(response for _, response in found)]
    whole = False
    try:
        await caller.call.write_all(responses)
        whole = True
    finally:
        if not whole:
            # Nobody knows what of it arrived: all of it comes again.
            parts.background.run(_give_back(parts, [handle for handle, _ in found]))
    parts.counts.received += len(found)
    if request.auto_renew:
        for handle, response in found:
            message_id = response.message.system_properties.message_id
            parts.renewals.hold(handle, caller.client_id, message_id, caller.session.user)


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
