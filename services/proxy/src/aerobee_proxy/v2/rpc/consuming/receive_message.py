"""ReceiveMessage: messages on lease, from any broker of the topic.

The stream: status, messages, delivery timestamp; also without a message and after a failure.

Of the queue that the client names, only its broker matters: it usually goes first. RocketMQ's proxy
does not ask any other broker.

Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_FILTER_EXPRESSION, ILLEGAL_INVISIBLE_TIME,
ILLEGAL_POLLING_TIME, FORBIDDEN, MESSAGE_NOT_FOUND, TOPIC_NOT_FOUND, CONSUMER_GROUP_NOT_FOUND,
TOO_MANY_REQUESTS, PROXY_TIMEOUT.
"""

from __future__ import annotations

from collections.abc import Iterator

from aerobee.broker.v1.pop_pb2 import PopRequest, PopResponse
from apache.rocketmq.v2.definition_pb2 import Code
from apache.rocketmq.v2.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse

from aerobee_chassis.clock import Clock
from aerobee_proxy.cluster.group_configs import GroupConfigCache
from aerobee_proxy.cluster.leasing.receive import Receiver
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.lite_clients import is_lite
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.rpc.receive_lite import receive_lite
from aerobee_proxy.v2.status import Refused, status
from aerobee_proxy.v2.translate import MessageEncoder, subscription
from aerobee_proxy.v2.validation.consumption import filter_of, polling_ms, receive_duration_ms
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.handles.leases import handle_encoder, handle_for, handles_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.record import Record, iter_records

_OK = ReceiveMessageResponse(status=status()).SerializeToString()


async def receive_message(
    receiver: Receiver,
    group_configs: GroupConfigCache,
    options: ProxyOptions,
    request: ReceiveMessageRequest,
    caller: Caller,
) -> None:
    await receiver.room()
    if await _is_lite(group_configs, request, caller):
        await receive_lite(receiver, options, request, caller)
        return
    pop, ordered = await _pop_request(group_configs, options, request, caller)
    answer = await receiver.pop(request.message_queue.broker.name, pop, ordered=ordered)
    if not answer.records:
        raise Refused(Code.MESSAGE_NOT_FOUND, "no new message")
    receiver.check_room(len(answer.records), lambda: handles_of(pop, answer))
    records = list(iter_records(answer.records, check_crc=False))  # checked by the broker

    def handles() -> Iterator[ReceiptHandle]:
        for record, attempt in zip(records, answer.delivery_attempts, strict=True):
            yield handle_for(record, attempt, pop, answer)

    responses = _responses(options, request, pop, answer, records)
    if request.auto_renew:
        # Renew before sending: the client may acknowledge the first while the last is being sent.
        message_ids = (record.unique_message_id or record.offset_message_id for record in records)
        receiver.renew(
            zip(handles(), message_ids, strict=True), caller.client_id, caller.session.user
        )
    written = False
    try:
        await caller.call.write_all(responses, more_follows=True)
        written = True
    finally:
        if not written:  # it is unknown which messages arrived, so redeliver all
            receiver.give_back(list(handles()))
    receiver.delivered(len(records))


async def _is_lite(
    group_configs: GroupConfigCache, request: ReceiveMessageRequest, caller: Caller
) -> bool:
    """Return whether the client gets lite topics.

    If another proxy has its settings, its group decides. Otherwise, the client would get all
    messages of the parent.
    """
    if caller.session.settings is not None:
        return is_lite(caller.session)
    policy = await group_configs.policy(group_name(request.group))
    return policy.lite is not None


def delivery_timestamp(clock: Clock) -> ReceiveMessageResponse:
    """Return the last message of every stream."""
    response = ReceiveMessageResponse()
    response.delivery_timestamp.FromMilliseconds(clock.now_ms())
    return response


def _responses(
    options: ProxyOptions,
    request: ReceiveMessageRequest,
    pop: PopRequest,
    answer: PopResponse,
    records: list[Record],
) -> list[bytes]:
    response = ReceiveMessageResponse()
    encoder = MessageEncoder(
        response.message,
        namespace=request.message_queue.topic.resource_namespace,
        max_body_size=options.max_message_size,
    )
    handle = handle_encoder(pop, answer)
    responses = [_OK]
    for record, attempt in zip(records, answer.delivery_attempts, strict=True):
        encoder.encode(record, handle(record, attempt), attempt)
        responses.append(response.SerializeToString())
    return responses


async def _pop_request(
    group_configs: GroupConfigCache,
    options: ProxyOptions,
    request: ReceiveMessageRequest,
    caller: Caller,
) -> tuple[PopRequest, bool]:
    """Return the pop, and whether the group consumes the topic in order."""
    topic, group = topic_name(request.message_queue.topic), group_name(request.group)
    filter_of(request.filter_expression)
    policy = await group_configs.policy(group)
    ordered = await group_configs.is_ordered(policy, topic)
    keeps_order = caller.session.keeps_order
    if keeps_order is None:  # settings unknown: with the order ON, all members were answered FIFO
        keeps_order = policy.order is ConsumeOrder.ON
    pop = PopRequest(
        consumer_group=group,
        topic=topic,
        max_messages=min(
            max(request.batch_size, 1), options.grpc_client_consumer_long_polling_batch_size
        ),
        invisible_duration_ms=receive_duration_ms(
            request.invisible_duration if request.HasField("invisible_duration") else None,
            request.auto_renew,
            options,
        ),
        poll_duration_ms=polling_ms(
            request.long_polling_timeout if request.HasField("long_polling_timeout") else None,
            caller.call.time_remaining_s(),
            caller.session.request_timeout_ms,
            options,
        ),
        subscription=subscription(topic, request.filter_expression),
        fifo=ordered and keeps_order,
        attempt_id=request.attempt_id if ordered else "",
        client_id=caller.client_id,
    )
    return pop, ordered
