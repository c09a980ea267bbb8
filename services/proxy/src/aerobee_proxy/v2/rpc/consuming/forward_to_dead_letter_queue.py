"""ForwardMessageToDeadLetterQueue: a FIFO consumer gives up a message, so that the next can come.

The C++ SDK does not send a receipt handle. Its message is found by the message id among the leases
that this proxy renews for the client.

Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, INVALID_RECEIPT_HANDLE, MESSAGE_NOT_FOUND,
PROXY_TIMEOUT.
"""

from __future__ import annotations

from aerobee.broker.v1.message_pb2 import Failure
from apache.rocketmq.v2.definition_pb2 import Code
from apache.rocketmq.v2.service_pb2 import (
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
)

from aerobee_proxy.cluster.leasing.acknowledge import Acknowledgements
from aerobee_proxy.cluster.leasing.lease_renewal import LeaseRenewal
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import Refused, status
from aerobee_wire.handles.leases import handle_of

FORWARDED_BY_CLIENT = "ForwardedByClient"


async def forward_to_dead_letter_queue(
    acknowledgements: Acknowledgements,
    lease_renewal: LeaseRenewal,
    request: ForwardMessageToDeadLetterQueueRequest,
    caller: Caller,
) -> ForwardMessageToDeadLetterQueueResponse:
    topic, group = topic_name(request.topic), group_name(request.group)
    if request.receipt_handle:
        handle = handle_of(request.receipt_handle, topic, group)
    else:
        found = lease_renewal.find(
            caller.client_id, topic, group, request.message_id, caller.session.user
        )
        if found is None:
            raise Refused(
                Code.INVALID_RECEIPT_HANDLE,
                f"the request has no receipt handle, and message {request.message_id[:64]!r} is "
                "not among those that this client got from here and holds",
            )
        handle = found
    failure = Failure(
        reason=FORWARDED_BY_CLIENT,
        description=f"client {caller.client_id} gave it up after delivery attempt "
        f"{request.delivery_attempt}",
    )
    await acknowledgements.dead_letter(handle, failure)
    return ForwardMessageToDeadLetterQueueResponse(status=status())
