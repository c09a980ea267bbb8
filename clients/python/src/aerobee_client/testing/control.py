"""Call the control of a suite (`aerobee_suite --test-control`): time, faults, settling."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from aerobee_client.cluster.transport import GrpcTransport
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

# Longer than the waits of a suite, whose errors name what it waited for.
TIMEOUT_S = 600.0


async def call(namesrv: str, rpc: Rpc[Q, R], request: Q) -> R:
    """Call the control on a connection of its own, so that a test may use any event loop.

    Raises MqError; REQUEST_CODE_NOT_SUPPORTED if the cluster has no such control.
    """
    transport = GrpcTransport()
    try:
        return await transport.call(namesrv, rpc, request, timeout_s=TIMEOUT_S)
    except MqError as error:
        if error.code is not Code.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise MqError(
            error.code,
            f"the cluster of {namesrv} takes no {rpc.method} from tests: only one that `python -m "
            "aerobee_suite --test-control` runs does, as the plugin's own (without "
            "--rocketmq-namesrv) and RocketMqContainer's are",
        ) from None
    finally:
        await transport.close()
