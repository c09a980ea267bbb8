"""Heartbeat: a client is alive. Heartbeats are passed on to all brokers.

The answer does not wait for a producer's heartbeat to reach brokers.

Codes: ILLEGAL_CONSUMER_GROUP, CONSUMER_GROUP_NOT_FOUND, UNRECOGNIZED_CLIENT_TYPE. Difference from
RocketMQ's proxy: a heartbeat that arrives before the settings of its client is accepted.
"""

from __future__ import annotations

from apache.rocketmq.v2.definition_pb2 import Code
from apache.rocketmq.v2.service_pb2 import HeartbeatRequest, HeartbeatResponse

from aerobee_proxy.background import Background
from aerobee_proxy.v2.heartbeats import ClientHeartbeats
from aerobee_proxy.v2.resources import group_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.settings import CONSUMERS, PRODUCERS
from aerobee_proxy.v2.status import Refused, status


async def heartbeat(
    heartbeats: ClientHeartbeats,
    background: Background,
    request: HeartbeatRequest,
    caller: Caller,
) -> HeartbeatResponse:
    # Some SDKs omit the type in heartbeats that arrive before their settings.
    kind = request.client_type or (caller.session.settings or request).client_type
    if kind in CONSUMERS:
        await heartbeats.of_consumer(caller.session, group_name(request.group), caller.call)
    elif kind in PRODUCERS:
        background.run(heartbeats.of_producer(caller.session, caller.call))
    else:
        raise Refused(
            Code.UNRECOGNIZED_CLIENT_TYPE,
            f"no client of type {int(kind)} sends heartbeats: say what kind of client this is",
        )
    return HeartbeatResponse(status=status())
