"""AckMessage: a consumer acknowledges messages.

The acknowledgements are durable before the answer.

Codes of the response and of each entry: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
INVALID_RECEIPT_HANDLE, MULTIPLE_RESULTS, PROXY_TIMEOUT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from apache.rocketmq.v2.service_pb2 import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
)

from aerobee_proxy.cluster.leasing.acknowledge import Acknowledgements
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import overall, status, status_for

_DONE = AckMessageResultEntry(status=status())


async def ack_message(
    acknowledgements: Acknowledgements, request: AckMessageRequest, caller: Caller
) -> AckMessageResponse:
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
