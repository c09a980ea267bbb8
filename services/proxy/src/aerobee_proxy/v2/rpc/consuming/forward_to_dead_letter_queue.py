"""ForwardMessageToDeadLetterQueue: a FIFO consumer gives a message up, so that the next can come.

Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, INVALID_RECEIPT_HANDLE, MESSAGE_NOT_FOUND,
PROXY_TIMEOUT. The C++ SDK sends no receipt handle: its message is then found by its id, among those
that this proxy renews for the client.
"""

from __future__ import annotations

from aerobee.broker.v1.message_pb2 import Failure
from aerobee.broker.v1.pop_pb2 import DeadLetterEntry
from apache.rocketmq.v2.definition_pb2 import Code
from apache.rocketmq.v2.service_pb2 import (
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
)

from aerobee_proxy.cluster.leases import lease_of
from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import Refused, status
from aerobee_proxy.v2.rpc.consuming.lease_handover import settling
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.validation import group_name, handle_of, topic_name
from aerobee_wire.receipt_handle import ReceiptHandle


async def forward_to_dead_letter_queue(
    parts: Parts, request: ForwardMessageToDeadLetterQueueRequest, caller: Caller
) -> ForwardMessageToDeadLetterQueueResponse:
    topic, group = topic_name(request.topic), group_name(request.group)
    handle = _handle(parts, request, caller, topic, group)
    failure = Failure(
        reason="GivenUp",
        description=f"the consumer gave up after delivery attempt {request.delivery_attempt}",
    )
    async with settling(parts, handle):
        await parts.brokers.dead_letter(
            handle.broker_name, DeadLetterEntry(lease=lease_of(handle), failure=failure)
        )
    return ForwardMessageToDeadLetterQueueResponse(status=status())


def _handle(
    parts: Parts,
    request: ForwardMessageToDeadLetterQueueRequest,
    caller: Caller,
    topic: str,
    group: str,
) -> ReceiptHandle:
    if request.receipt_handle:
        return handle_of(request.receipt_handle, topic, group)
    found = parts.renewals.find(
        caller.client_id, topic, group, request.message_id, caller.session.user
    )
    if found is None:
        raise Refused(
            Code.INVALID_RECEIPT_HANDLE,
            f"the request has no receipt handle, and message {request.message_id[:64]!r} is not "
            "among those that this client got from here and holds",
        )
    return found
