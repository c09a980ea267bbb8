"""Handle AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

These RPCs settle or change leases. The result is durable before the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from aerobee.broker.v1.message_pb2 import Failure
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import ClientType, Code
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
)

from aerobee_proxy.cluster.group_configs import GroupConfigCache
from aerobee_proxy.cluster.leasing.acknowledge import Acknowledgements
from aerobee_proxy.cluster.leasing.lease_renewal import LeaseRenewal
from aerobee_proxy.config import CurrentOptions
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import Refused, overall, status, status_for
from aerobee_proxy.v2.validation import change_duration_ms
from aerobee_wire.handles.leases import handle_of
from aerobee_wire.handles.receipt_handle import encode

_DONE = AckMessageResultEntry(status=status())


async def ack_message(
    acknowledgements: Acknowledgements, request: AckMessageRequest, caller: Caller
) -> AckMessageResponse:
    """Handle AckMessage: acknowledge messages of a consumer.

    The acknowledgements are durable before the answer.

    Codes of the response and of each entry: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
    INVALID_RECEIPT_HANDLE, MULTIPLE_RESULTS, PROXY_TIMEOUT.
    """

    topic, group = topic_name(request.topic), group_name(request.group)
    handles = [entry.receipt_handle for entry in request.entries]
    failures = await acknowledgements.acknowledge(handles, topic, group)
    return _response(request, handles, failures)


def _response(
    request: AckMessageRequest, handles: Sequence[str], failures: Mapping[int, Exception]
) -> AckMessageResponse:
    failed = {index: status_for("ack_message", error) for index, error in failures.items()}
    outcomes = [*failed.values()]
    if len(outcomes) < len(handles):
        outcomes.append(_DONE.status)
    response = AckMessageResponse(status=overall(outcomes), entries=[_DONE] * len(handles))
    for asked, answered, handle in zip(request.entries, response.entries, handles, strict=True):
        answered.message_id = asked.message_id
        answered.receipt_handle = handle
    for index, failure in failed.items():
        response.entries[index].status.CopyFrom(failure)
    return response


async def change_invisible_duration(
    acknowledgements: Acknowledgements,
    group_configs: GroupConfigCache,
    current: CurrentOptions,
    request: ChangeInvisibleDurationRequest,
    caller: Caller,
) -> ChangeInvisibleDurationResponse:
    """Handle ChangeInvisibleDuration: change the time at which a leased message becomes visible.

    Push consumers also use this RPC to return a message. The message is then not redelivered before
    the retry delay of its group, because one SDK asks for no delay regardless of its settings. A
    request with REASON_KEY in its metadata returns the message too, for this reason.

    The lease stays the same. Thus the old receipt handle stays valid beside the new receipt handle.

    Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_INVISIBLE_TIME, INVALID_RECEIPT_HANDLE,
    PROXY_TIMEOUT.
    """
    options = current()
    topic, group = topic_name(request.topic), group_name(request.group)
    duration_ms = change_duration_ms(request.invisible_duration, options)
    handle = handle_of(request.receipt_handle, topic, group)
    rejection: Failure | None = None
    if not request.suspend:
        rejection = given_failure(caller)
        # A push consumer's listener failed; a simple consumer may only ask for more time.
        if _is_push_consumer(caller):
            rejection = rejection or Failure()
            policy = await group_configs.policy(group)
            duration_ms = max(duration_ms, policy.retry_delay_ms(handle.delivery_attempt))
    result = await acknowledgements.change_invisible_duration(
        handle, duration_ms, counted=not request.suspend, rejection=rejection
    )
    changed = handle._replace(
        pop_time_ms=result.pop_time_ms,
        invisible_duration_ms=result.invisible_duration_ms,
    )
    return ChangeInvisibleDurationResponse(status=status(), receipt_handle=encode(changed))


def _is_push_consumer(caller: Caller) -> bool:
    settings = caller.session.settings
    return settings is not None and settings.client_type == ClientType.PUSH_CONSUMER


FORWARDED_BY_CLIENT = "ForwardedByClient"

# The protocol has no field for the reason of a failure. A consumer gives it in the metadata of
# ChangeInvisibleDuration or ForwardMessageToDeadLetterQueue, as percent-encoded UTF-8.
REASON_KEY, DESCRIPTION_KEY = "x-aerobee-reason", "x-aerobee-description"


def given_failure(caller: Caller) -> Failure | None:
    """Return the failure in the metadata of a call, or None if it has none."""
    metadata = caller.call.metadata
    reason, description = metadata.get(REASON_KEY, ""), metadata.get(DESCRIPTION_KEY, "")
    if not reason and not description:
        return None
    return Failure(
        reason=unquote(reason, errors="replace"),
        description=unquote(description, errors="replace"),
        consumer=caller.client_id,
    )


async def forward_to_dead_letter_queue(
    acknowledgements: Acknowledgements,
    lease_renewal: LeaseRenewal,
    request: ForwardMessageToDeadLetterQueueRequest,
    caller: Caller,
) -> ForwardMessageToDeadLetterQueueResponse:
    """Handle ForwardMessageToDeadLetterQueue: move a FIFO consumer's message to the dead letters.

    The C++ SDK does not send a receipt handle. Its message is found by the message id among the
    leases that this proxy renews for the client.

    Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, INVALID_RECEIPT_HANDLE, MESSAGE_NOT_FOUND,
    PROXY_TIMEOUT.
    """

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
                f"the request has no receipt handle, and this client holds no message "
                f"{request.message_id[:64]!r} from this proxy: send the receipt handle",
            )
        handle = found
    given = given_failure(caller) or Failure(consumer=caller.client_id)
    failure = Failure(
        reason=given.reason or FORWARDED_BY_CLIENT,
        description=given.description
        or f"client {caller.client_id} gave it up after delivery attempt "
        f"{request.delivery_attempt}",
        consumer=given.consumer,
    )
    await acknowledgements.dead_letter(handle, failure)
    return ForwardMessageToDeadLetterQueueResponse(status=status())
