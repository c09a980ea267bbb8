"""ChangeInvisibleDuration: a message becomes visible later, or sooner, than its lease said.

Push consumers also use it to give a message back. Then the message is not redelivered sooner than
the retry policy of its group says. The reason is that one SDK asks for no delay, regardless of its
settings.

The lease stays the same: the receipt handle that came with the message stays valid beside the new
one.

Codes: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_INVISIBLE_TIME, INVALID_RECEIPT_HANDLE,
PROXY_TIMEOUT.
"""

from __future__ import annotations

from apache.rocketmq.v2.definition_pb2 import ClientType
from apache.rocketmq.v2.service_pb2 import (
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
)

from aerobee_proxy.cluster.group_configs import GroupConfigCache
from aerobee_proxy.cluster.leasing.acknowledge import Acknowledgements
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import status
from aerobee_proxy.v2.validation.consumption import change_duration_ms
from aerobee_wire.handles.leases import handle_of
from aerobee_wire.handles.receipt_handle import encode


async def change_invisible_duration(
    acknowledgements: Acknowledgements,
    group_configs: GroupConfigCache,
    options: ProxyOptions,
    request: ChangeInvisibleDurationRequest,
    caller: Caller,
) -> ChangeInvisibleDurationResponse:
    topic, group = topic_name(request.topic), group_name(request.group)
    duration_ms = change_duration_ms(request.invisible_duration, options)
    handle = handle_of(request.receipt_handle, topic, group)
    if not request.suspend and _is_push_consumer(caller):
        policy = await group_configs.policy(group)
        duration_ms = max(duration_ms, policy.retry_delay_ms(handle.delivery_attempt))
    result = await acknowledgements.change_invisible_duration(
        handle, duration_ms, counted=not request.suspend
    )
    changed = handle._replace(
        pop_time_ms=result.pop_time_ms,
        invisible_duration_ms=result.invisible_duration_ms,
    )
    return ChangeInvisibleDurationResponse(status=status(), receipt_handle=encode(changed))


def _is_push_consumer(caller: Caller) -> bool:
    settings = caller.session.settings
    return settings is not None and settings.client_type == ClientType.PUSH_CONSUMER
