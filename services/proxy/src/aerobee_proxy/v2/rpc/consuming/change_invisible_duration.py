"""ChangeInvisibleDuration: a message comes again later, or sooner, than it was leased for.

This is also how push consumers give a message back, and then it comes no sooner than the retry
policy of its group says: one SDK asks for no wait at all, whatever its settings say. The lease
stays the same: the handle that came with the message keeps its worth beside the new one. Codes:
ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_INVISIBLE_TIME, INVALID_RECEIPT_HANDLE,
PROXY_TIMEOUT.
"""

from __future__ import annotations

from apache.rocketmq.v2.definition_pb2 import ClientType
from apache.rocketmq.v2.service_pb2 import (
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
)

from aerobee_proxy.cluster.leases import invisible_for
from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import status
from aerobee_proxy.v2.rpc.consuming.lease_handover import settling
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.validation import change_duration_ms, group_name, handle_of, topic_name
from aerobee_wire.receipt_handle import encode


async def change_invisible_duration(
    parts: Parts, request: ChangeInvisibleDurationRequest, caller: Caller
) -> ChangeInvisibleDurationResponse:
    topic, group = topic_name(request.topic), group_name(request.group)
    duration_ms = change_duration_ms(request.invisible_duration, parts.options)
    handle = handle_of(request.receipt_handle, topic, group)
    if not request.suspend and _pushes(caller):
        policy = await parts.groups.policy(group)
        duration_ms = max(duration_ms, policy.retry_delay_ms(handle.delivery_attempt))
    change = invisible_for(handle, duration_ms, counted=not request.suspend)
    async with settling(parts, handle):
        result = await parts.brokers.change(handle.broker_name, change)
    changed = handle._replace(
        pop_time_ms=result.pop_time_ms,
        invisible_duration_ms=result.invisible_duration_ms,
    )
    return ChangeInvisibleDurationResponse(status=status(), receipt_handle=encode(changed))


def _pushes(caller: Caller) -> bool:
    settings = caller.session.settings
    return settings is not None and settings.client_type == ClientType.PUSH_CONSUMER
