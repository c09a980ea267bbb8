"""The proxy's network interface: calls to name servers and brokers. Failures are MqErrors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from aerobee_chassis.rpc.transport import CallFailed
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError, error_from

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

# For failures without an Aerobee code: grpc itself refused, or the peer is another program.
_CODE_OF_STATUS = {
    "UNIMPLEMENTED": Code.REQUEST_CODE_NOT_SUPPORTED,
    "RESOURCE_EXHAUSTED": Code.MESSAGE_ILLEGAL,  # more than 64 MiB on either side
    "INVALID_ARGUMENT": Code.INVALID_PARAMETER,
    "DEADLINE_EXCEEDED": Code.REQUEST_TIMEOUT,
}


class Transport(Protocol):
    """`aerobee_chassis.rpc.caller.Caller`, or a stand-in. Addresses are "host:port"."""

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        """Call a peer and return its answer.

        Raises MqError: BROKER_UNREACHABLE, REQUEST_TIMEOUT, or the error that the peer answered
        with.
        """

    def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        """Yield the peer's messages until it ends the stream. Raises MqError like `call`."""

    async def drop(self, address: str) -> None:
        """Fail the calls under way at an address with BROKER_UNREACHABLE.

        Later calls open a new connection.
        """

    async def close(self) -> None: ...


def error_of(address: str, failure: CallFailed) -> MqError:
    """Return the error that a peer answered with, else one that names the peer."""
    answered = error_from(failure.message, failure.trailers)
    if answered is not None:
        return answered
    code = _CODE_OF_STATUS.get(failure.status, Code.BROKER_UNREACHABLE)
    return MqError(code, f"no answer from {address}: {failure.message or failure.status}")
