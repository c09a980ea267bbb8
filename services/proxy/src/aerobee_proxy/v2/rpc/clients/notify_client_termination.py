"""NotifyClientTermination: a client ends, and its session with it.

This RPC has only the codes that every RPC has. Difference from RocketMQ's proxy: an unknown client
is accepted, because a proxy that restarted does not know its earlier clients.
"""

from __future__ import annotations

import asyncio

from apache.rocketmq.v2.service_pb2 import (
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
)

from aerobee_proxy.v2.heartbeats import ClientHeartbeats
from aerobee_proxy.v2.lite_clients import LiteDepartures
from aerobee_proxy.v2.resources import stored_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.sessions import Sessions
from aerobee_proxy.v2.status import status


async def notify_client_termination(
    sessions: Sessions,
    heartbeats: ClientHeartbeats,
    departures: LiteDepartures,
    request: NotifyClientTerminationRequest,
    caller: Caller,
) -> NotifyClientTerminationResponse:
    sessions.remove(caller.client_id, caller.session.user)
    departures.left(caller.session)
    # Brokers give its messages to other members only after it is unregistered. This is done in the
    # background, because a client that ends rarely waits for the answer. A producer does not name a
    # group.
    group = stored_name(request.group) if request.group.name else ""
    unregistered = departures.background.run(heartbeats.unregister(caller.client_id, group))
    if group:
        await asyncio.shield(unregistered)
    return NotifyClientTerminationResponse(status=status())
