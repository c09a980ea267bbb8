"""NotifyClientTermination: a client says goodbye, and is forgotten at once.

Codes: none of its own. Differs from RocketMQ's proxy: a client that was not known is no error,
since a proxy that came back does not know the clients of the one before.
"""

from __future__ import annotations

import asyncio

from apache.rocketmq.v2.service_pb2 import (
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
)

from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import status
from aerobee_proxy.v2.resources import stored_name
from aerobee_proxy.v2.rpc.pipeline import Caller


async def notify_client_termination(
    parts: Parts, request: NotifyClientTerminationRequest, caller: Caller
) -> NotifyClientTerminationResponse:
    parts.sessions.remove(caller.client_id, caller.session.user)
    if request.group.name:  # a consumer
        # Who says goodbye hardly waits for the answer, and what it held is given back only then.
        retract = parts.presence.retract(caller.client_id, stored_name(request.group))
        await asyncio.shield(parts.background.run(retract))
    return NotifyClientTerminationResponse(status=status())
