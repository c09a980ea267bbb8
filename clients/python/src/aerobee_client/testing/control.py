"""Calls to the control of a suite (`aerobee_suite --test-control`): time, faults, settling."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from aerobee_client.cluster.transport import GrpcTransport
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

# Longer than a suite itself waits: it says what it waited for.
TIMEOUT_S = 600.0


async def call(namesrv: str, rpc: Rpc[Q, R], request: Q) -> R:
    """On a connection of its own, so that a test may use any loop. Raises MqError, also
    REQUEST_CODE_NOT_SUPPORTED where there is no such control."""
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
