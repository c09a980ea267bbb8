"""The network interface of a caller of name servers and brokers. Failures are MqErrors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

# Name of a gRPC status → code, for failures without an Aerobee code: grpc itself refused, or the
# peer is another program. Client and proxy choose the codes of other statuses themselves.
CODE_OF_STATUS: Mapping[str, Code] = {
    "UNIMPLEMENTED": Code.REQUEST_CODE_NOT_SUPPORTED,
    "RESOURCE_EXHAUSTED": Code.MESSAGE_ILLEGAL,  # over 64 MiB, in either direction
    "INVALID_ARGUMENT": Code.INVALID_PARAMETER,
}


class Transport(Protocol):
    """The network, or a stand-in. Addresses are "host:port"."""

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        """Call an RPC and return its response.

        Raises MqError: BROKER_UNREACHABLE, REQUEST_TIMEOUT, or the error that the peer answered
        with.
        """

    def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        """Yield the responses of a server stream. Raises like `call`, also after some responses."""

    async def drop(self, address: str) -> None:
        """Fail calls in flight at an address with BROKER_UNREACHABLE. Later calls reconnect."""

    async def close(self) -> None: ...
