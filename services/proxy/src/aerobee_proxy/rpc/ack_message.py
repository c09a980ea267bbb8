"""AckMessage: messages are consumed; durable when answered.

Codes of the response and of each entry: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
INVALID_RECEIPT_HANDLE, MULTIPLE_RESULTS, PROXY_TIMEOUT.
"""

from __future__ import annotations

import asyncio

from apache.rocketmq.v2.definition_pb2 import Code, Status
from apache.rocketmq.v2.service_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
)

from aerobee_proxy.errors import overall, status
from aerobee_proxy.leases import lease_of
from aerobee_proxy.parts import Parts
from aerobee_proxy.rpc.pipeline import Caller, tell
from aerobee_proxy.rpc.settling import settling
from aerobee_proxy.validation import group_name, handle_of, topic_name


async def ack_message(
    parts: Parts, request: AckMessageRequest, caller: Caller
) -> AckMessageResponse:
    topic, group = topic_name(request.topic), group_name(request.group)
    outcomes = await asyncio.gather(
        *(_ack(parts, entry, topic, group) for entry in request.entries)
    )
    parts.counts.acknowledged += sum(outcome.code == Code.OK for outcome in outcomes)
    entries = [
        AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=outcome
        )
        for entry, outcome in zip(request.entries, outcomes, strict=True)
    ]
    return AckMessageResponse(status=overall(outcomes), entries=entries)


async def _ack(parts: Parts, entry: AckMessageEntry, topic: str, group: str) -> Status:
    try:
        handle = handle_of(entry.receipt_handle, topic, group)
        async with settling(parts, handle):
            await parts.brokers.ack(handle.broker_name, lease_of(handle))
    except Exception as error:  # of this entry only
        return tell(ack_message, error)
    return status()
