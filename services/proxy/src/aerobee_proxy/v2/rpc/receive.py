"""Handle ReceiveMessage: lease messages from the brokers of a topic to a consumer.

The stream consists of a status, the messages, and a delivery timestamp. It has a status and a
delivery timestamp even without a message and after a failure.

The client names a queue, but only the broker of that queue matters: the proxy usually asks that
broker first, and then the other brokers. RocketMQ's proxy does not ask any other broker.

A lite client gets messages of the lite topics that it subscribes to. The client's settings declare
a lite client. If another proxy has the settings, a client of a group with lite topics is a lite
client. A response may contain messages of several lite topics, in order within each lite topic. The
receipt handle contains the lite topic, because some SDKs do not send it when they settle a message.
For a lite push consumer, the proxy asks only the named broker, because the consumer receives from
each broker. For a lite simple consumer, the proxy asks all brokers.

Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_FILTER_EXPRESSION, ILLEGAL_INVISIBLE_TIME,
ILLEGAL_POLLING_TIME, BAD_REQUEST, FORBIDDEN, MESSAGE_NOT_FOUND, TOPIC_NOT_FOUND,
CONSUMER_GROUP_NOT_FOUND, TOO_MANY_REQUESTS, PROXY_TIMEOUT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aerobee.broker.v1.lite_pb2 import LitePopRequest
from aerobee.broker.v1.pop_pb2 import PopRequest, PopResponse
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import (
    ReceiveMessageRequest,
    ReceiveMessageResponse,
)

from aerobee_chassis.clock import Clock
from aerobee_proxy.cluster.group_configs import GroupConfigCache
from aerobee_proxy.cluster.leasing.receive import Receiver
from aerobee_proxy.config import CurrentOptions, ProxyOptions
from aerobee_proxy.v2.lite_clients import is_lite, notify_lost
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.settings import PUSH_CONSUMERS
from aerobee_proxy.v2.status import Refused, status
from aerobee_proxy.v2.translate import MessageEncoder, subscription
from aerobee_proxy.v2.validation import filter_of, polling_ms, receive_duration_ms
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.handles.leases import handle_encoder, handle_maker
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.queues.lite import lease_topic_of
from aerobee_wire.record import Record, iter_records

_OK = ReceiveMessageResponse(status=status()).SerializeToString()
# Most unsettled leases that this proxy renews for one lite client. This is RocketMQ's limit.
MAX_RENEWED = 100


class _Batch(NamedTuple):
    """The messages that one pop returned. In a lite pop, all of them have the same lite topic."""

    pop: PopRequest
    answer: PopResponse
    records: list[Record]

    @classmethod
    def of(cls, pop: PopRequest, answer: PopResponse) -> _Batch:
        records = iter_records(answer.records, check_crc=False)  # checked by the broker
        return cls(pop, answer, list(records))

    def handles(self) -> Iterator[tuple[ReceiptHandle, str]]:
        """Yield (receipt handle, message id) of each message."""
        handle = handle_maker(self.pop, self.answer)
        for record, attempt in zip(self.records, self.answer.delivery_attempts, strict=True):
            message_id = record.unique_message_id or record.offset_message_id
            yield handle(record, attempt), message_id


class _Limits(NamedTuple):
    """The number of messages and the durations in a pop or lite pop."""

    max_messages: int
    invisible_duration_ms: int
    poll_duration_ms: int


async def receive_message(
    receiver: Receiver,
    group_configs: GroupConfigCache,
    current: CurrentOptions,
    request: ReceiveMessageRequest,
    caller: Caller,
) -> None:
    options = current()
    session = caller.session
    if session.receives >= options.max_polls_per_client:
        raise Refused(
            Code.TOO_MANY_REQUESTS,
            f"client {caller.client_id} has {session.receives} receives in progress, the most that "
            "maxPollsPerClient allows: wait for them",
        )
    session.receives += 1
    try:
        await _receive(receiver, group_configs, options, request, caller)
    finally:
        session.receives -= 1


async def _receive(
    receiver: Receiver,
    group_configs: GroupConfigCache,
    options: ProxyOptions,
    request: ReceiveMessageRequest,
    caller: Caller,
) -> None:
    await receiver.room()
    if await _is_lite(group_configs, request, caller):
        batches = await _pop_lite(receiver, options, request, caller)
    else:
        pop, ordered = await _pop_request(group_configs, options, request, caller)
        answer = await receiver.pop(request.message_queue.broker.name, pop, ordered=ordered)
        batches = [_Batch.of(pop, answer)] if answer.records else []
    if not batches:
        raise Refused(Code.MESSAGE_NOT_FOUND, "no new message")
    await _deliver(receiver, options, request, caller, batches)


async def _pop_lite(
    receiver: Receiver, options: ProxyOptions, request: ReceiveMessageRequest, caller: Caller
) -> list[_Batch]:
    session = caller.session
    if session.settings is not None and not session.streams:
        raise Refused(
            Code.BAD_REQUEST,
            "this client has no telemetry stream, which lite topics need: open one, and retry",
        )
    pop = _lite_pop_request(options, request, caller)
    renewed = receiver.renewed_of(caller.client_id, session.user)
    if request.auto_renew and renewed > MAX_RENEWED:
        raise Refused(
            Code.FORBIDDEN,
            f"too many unacked messages: this client holds {renewed}, and may hold {MAX_RENEWED} "
            "whose leases are renewed; acknowledge some first",
        )
    everywhere = session.settings is None or session.settings.client_type not in PUSH_CONSUMERS
    answer = await receiver.pop_lite(request.message_queue.broker.name, pop, everywhere=everywhere)
    notify_lost(session, answer.lost)
    return [
        _Batch.of(
            PopRequest(
                consumer_group=pop.consumer_group,
                topic=lease_topic_of(pop.parent, batch.lite_topic),
                fifo=True,
            ),
            batch.messages,
        )
        for batch in answer.batches
    ]


async def _deliver(
    receiver: Receiver,
    options: ProxyOptions,
    request: ReceiveMessageRequest,
    caller: Caller,
    batches: Sequence[_Batch],
) -> None:
    """Write the messages to the client, and renew their leases if the request says so."""

    def handles() -> list[ReceiptHandle]:
        return [handle for batch in batches for handle, _ in batch.handles()]

    receiver.check_room(sum(len(batch.answer.records) for batch in batches), handles)
    responses = _responses(options, request, batches)
    if request.auto_renew:
        # Renew before sending: the client may acknowledge the first while the last is being sent.
        leases = (pair for batch in batches for pair in batch.handles())
        receiver.renew(leases, caller.client_id, caller.session.user)
    written = False
    try:
        await caller.call.write_all(responses)
        written = True
    finally:
        if not written:  # redeliver all, because it is unknown which messages arrived
            receiver.give_back(handles())
    receiver.delivered(sum(len(batch.records) for batch in batches))
    caller.received(
        sum(len(batch.records) for batch in batches),
        sum(len(batch.answer.records) for batch in batches),
    )


async def _is_lite(
    group_configs: GroupConfigCache, request: ReceiveMessageRequest, caller: Caller
) -> bool:
    """Return whether the client gets messages of lite topics.

    If another proxy has the client's settings, return whether the client's group is bound to lite
    topics. Without this rule, the client would get all messages of the parent topic.
    """
    if caller.session.settings is not None:
        return is_lite(caller.session)
    policy = await group_configs.policy(group_name(request.group))
    return policy.lite is not None


def delivery_timestamp(clock: Clock) -> ReceiveMessageResponse:
    """Return the last response of every ReceiveMessage stream: the time of delivery."""
    response = ReceiveMessageResponse()
    response.delivery_timestamp.FromMilliseconds(clock.now_ms())
    return response


def _responses(
    options: ProxyOptions, request: ReceiveMessageRequest, batches: Sequence[_Batch]
) -> list[bytes]:
    response = ReceiveMessageResponse()
    encoder = MessageEncoder(
        response.message,
        namespace=request.message_queue.topic.resource_namespace,
        max_body_size=options.max_message_size,
    )
    responses = [_OK]
    for pop, answer, records in batches:
        handle = handle_encoder(pop, answer)
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
    """Return the pop request for the broker, and whether the group consumes the topic in order."""
    topic, group = topic_name(request.message_queue.topic), group_name(request.group)
    filter_of(request.filter_expression)
    policy = await group_configs.policy(group)
    ordered = await group_configs.is_ordered(policy, topic)
    keeps_order = caller.session.keeps_order
    if keeps_order is None:  # settings unknown; all members are FIFO if the group's order is ON
        keeps_order = policy.order is ConsumeOrder.ON
    limits = _limits(options, request, caller)
    pop = PopRequest(
        consumer_group=group,
        topic=topic,
        max_messages=limits.max_messages,
        invisible_duration_ms=limits.invisible_duration_ms,
        poll_duration_ms=limits.poll_duration_ms,
        subscription=subscription(topic, request.filter_expression),
        fifo=ordered and keeps_order,
        attempt_id=request.attempt_id if ordered else "",
        client_id=caller.client_id,
    )
    return pop, ordered


def _lite_pop_request(
    options: ProxyOptions, request: ReceiveMessageRequest, caller: Caller
) -> LitePopRequest:
    group, parent = group_name(request.group), topic_name(request.message_queue.topic)
    limits = _limits(options, request, caller)
    return LitePopRequest(
        consumer_group=group,
        parent=parent,
        client_id=caller.client_id,
        max_messages=limits.max_messages,
        invisible_duration_ms=limits.invisible_duration_ms,
        poll_duration_ms=limits.poll_duration_ms,
        attempt_id=request.attempt_id,
    )


def _limits(options: ProxyOptions, request: ReceiveMessageRequest, caller: Caller) -> _Limits:
    return _Limits(
        min(max(request.batch_size, 1), options.grpc_client_consumer_long_polling_batch_size),
        receive_duration_ms(
            request.invisible_duration if request.HasField("invisible_duration") else None,
            request.auto_renew,
            options,
        ),
        polling_ms(
            request.long_polling_timeout if request.HasField("long_polling_timeout") else None,
            caller.call.time_remaining_s(),
            caller.session.request_timeout_ms,
            options,
        ),
    )
