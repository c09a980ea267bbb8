"""Calling name servers: the first of the list that answers will do.

Name servers share nothing: one that has just started may not know a topic yet that another knows.
So TOPIC_NOT_EXIST counts only when all that answer say it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from aerobee_client.cluster.transport import Transport
from aerobee_client.errors import BrokerUnreachable, NamesrvUnreachable, RequestTimeout
from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code, MqError

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

NAMESRV_VARIABLE = "NAMESRV_ADDR"
CALL_TIMEOUT_S = 3.0
MAX_PORT = 65_535


def namesrv_addresses(namesrv: str | Sequence[str] | None) -> tuple[str, ...]:
    """The addresses of "host:port;host:port", of a list of these, or of NAMESRV_ADDR when None.

    Raises MqError INVALID_PARAMETER when there is none or one is not "host:port".
    """
    given = os.environ.get(NAMESRV_VARIABLE, "") if namesrv is None else namesrv
    parts = given.split(";") if isinstance(given, str) else given
    addresses = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not addresses:
        raise MqError(
            Code.INVALID_PARAMETER,
            f"no name server is given: pass namesrv='host:port' or set {NAMESRV_VARIABLE}",
        )
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"{address!r} is not the address of a name server: write host:port, and ; between "
                "several",
            )
    return addresses


class NamesrvClient:
    """Calls name servers: starts with a random one, and stays with one that answers."""

    def __init__(self, transport: Transport, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._transport = transport
        self._current = random.randrange(len(self.addresses))

    async def call(self, rpc: Rpc[Q, R], request: Q) -> R:
        """The response of the first that answers. Raises NamesrvUnreachable, or its refusal."""
        start = self._current
        reason = ""
        refusal: MqError | None = None
        for step in range(len(self.addresses)):
            index = (start + step) % len(self.addresses)
            address = self.addresses[index]
            try:
                response = await self._transport.call(
                    address, rpc, request, timeout_s=CALL_TIMEOUT_S
                )
            except (BrokerUnreachable, RequestTimeout) as error:
                reason = error.message
            except MqError as error:
                if error.code is not Code.TOPIC_NOT_EXIST:
                    raise
                refusal = error
            else:
                self._current = index
                return response
        raise refusal or NamesrvUnreachable(self.addresses, reason)

    async def call_each(self, rpc: Rpc[Q, R], request: Q) -> list[R]:
        """Calls every name server, for changes: they share nothing. Raises as soon as one fails."""
        return [
            await self._transport.call(address, rpc, request, timeout_s=CALL_TIMEOUT_S)
            for address in self.addresses
        ]
