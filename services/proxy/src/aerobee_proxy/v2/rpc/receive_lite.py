"""ReceiveMessage of a lite client: messages on lease, from the lite topics that it subscribes to.

A client's settings decide whether it is a lite client. If another proxy has its settings, its group
decides. The request does not.

A batch may hold several lite topics, each in order. The receipt handle contains the lite topic, so
that SDKs that do not send the lite topic can settle messages too.

A push consumer holds a receive at each broker, so only the broker that it names is asked. A simple
consumer names one broker, and all of them are asked.

Codes: those of ReceiveMessage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from aerobee.broker.v1.lite_pb2 import LitePopRequest, LitePopResponse
from aerobee.broker.v1.pop_pb2 import PopRequest, PopResponse
from apache.rocketmq.v2.definition_pb2 import Code
from apache.rocketmq.v2.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse

from aerobee_proxy.cluster.leasing.receive import Receiver
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.lite_clients import tell_lost
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.settings import PUSH_CONSUMERS
from aerobee_proxy.v2.status import Refused, status
from aerobee_proxy.v2.translate import MessageEncoder
from aerobee_proxy.v2.validation.consumption import polling_ms, receive_duration_ms
from aerobee_wire.handles.leases import handle_encoder, handle_for
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.queues.lite import line_of
from aerobee_wire.record import Record, iter_records

_OK = ReceiveMessageResponse(status=status()).SerializeToString()
# Leases that this proxy renews for one client, which has not settled them. RocketMQ's limit.
MAX_RENEWED = 100


class _Batch(NamedTuple):
    """Messages of one lite topic. `pop` is the pop that would have returned them."""

    pop: PopRequest
    answer: PopResponse
    records: list[Record]

    def handles(self) -> Iterator[tuple[ReceiptHandle, str]]:
        """Yield the receipt handle of each message with its message id."""
        for record, attempt in zip(self.records, self.answer.delivery_attempts, strict=True):
            message_id = record.unique_message_id or record.offset_message_id
            yield handle_for(record, attempt, self.pop, self.answer), message_id


async def receive_lite(
    receiver: Receiver, options: ProxyOptions, request: ReceiveMessageRequest, caller: Caller
) -> None:
    session = caller.session
    if session.settings is not None and not session.streams:
        raise Refused(
            Code.BAD_REQUEST, "this client has no telemetry stream, which lite topics need"
        )
    pop = _pop_request(options, request, caller)
    renewed = receiver.renewed_of(caller.client_id, session.user)
    if request.auto_renew and renewed > MAX_RENEWED:
        raise Refused(
            Code.FORBIDDEN,
            f"too many unacked messages: this client has not settled {renewed}, and may hold "
            f"{MAX_RENEWED} that are renewed for it",
        )
    everywhere = session.settings is None or session.settings.client_type not in PUSH_CONSUMERS
    answer = await receiver.pop_lite(request.message_queue.broker.name, pop, everywhere=everywhere)
    tell_lost(session, answer.lost)
    batches = [*_batches(pop, answer)]
    if not batches:
        raise Refused(Code.MESSAGE_NOT_FOUND, "no new message")
    handles = [pair for batch in batches for pair in batch.handles()]
    size = sum(len(batch.answer.records) for batch in batches)
    receiver.check_room(size, lambda: [handle for handle, _ in handles])
    responses = _responses(options, request, batches)
    if request.auto_renew:
        # Renew before sending: the client may acknowledge the first while the last is being sent.
        receiver.renew(handles, caller.client_id, session.user)
    written = False
    try:
        await caller.call.write_all(responses, more_follows=True)
        written = True
    finally:
        if not written:  # it is unknown which messages arrived, so redeliver all
            receiver.give_back([handle for handle, _ in handles])
    receiver.delivered(len(handles))


def _pop_request(
    options: ProxyOptions, request: ReceiveMessageRequest, caller: Caller
) -> LitePopRequest:
    return LitePopRequest(
        consumer_group=group_name(request.group),
        parent=topic_name(request.message_queue.topic),
        client_id=caller.client_id,
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
        attempt_id=request.attempt_id,
    )


def _batches(pop: LitePopRequest, answer: LitePopResponse) -> Iterator[_Batch]:
    for batch in answer.batches:
        asked = PopRequest(
            consumer_group=pop.consumer_group,
            topic=line_of(pop.parent, batch.lite_topic),
            fifo=True,
        )
        records = list(iter_records(batch.messages.records, check_crc=False))
        yield _Batch(asked, batch.messages, records)


def _responses(
    options: ProxyOptions, request: ReceiveMessageRequest, batches: Iterable[_Batch]
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
