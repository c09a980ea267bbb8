"""Define the network interface through which clients call name servers and brokers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

# Name of a gRPC status → code, for failures without an Aerobee code, because gRPC itself refused
# the call or the peer is not Aerobee. Client and proxy choose the codes of other statuses
# themselves.
CODE_OF_STATUS: Mapping[str, Code] = {
    "UNIMPLEMENTED": Code.REQUEST_CODE_NOT_SUPPORTED,
    "RESOURCE_EXHAUSTED": Code.MESSAGE_ILLEGAL,  # over 64 MiB, in either direction
    "INVALID_ARGUMENT": Code.INVALID_PARAMETER,
}


class Transport(Protocol):
    """Calls servers over the network; tests pass another implementation.

    Addresses are "host:port". Failures are raised as MqError.
    """

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        """Call an RPC and return its response.

        Raises:
            MqError: With the code BROKER_UNREACHABLE, REQUEST_TIMEOUT, or the code that the server
                answered with.
        """

    def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        """Yield the responses of a server stream.

        Raises the errors of `call`, before or after any response.
        """

    def expect(self, address: str, broker_name: str) -> None:
        """Accept only the certificate of this broker at an address, from the next call on.

        Without certificates, or if they name hosts, do nothing.
        """

    async def drop(self, address: str) -> None:
        """Fail the calls in flight to an address with BROKER_UNREACHABLE. Later calls reconnect."""

    async def close(self) -> None: ...
