"""Calling name servers: the first of the list that answers will do.

Name servers share nothing: one that has just started may not know a topic yet that another knows.
So TOPIC_NOT_EXIST counts only when all that answer say it; it is retryable when one of them has
seen a broker of the topic go.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from aerobee_client.cluster.transport import Transport
from aerobee_client.errors import BrokerUnreachable, NamesrvUnreachable, RequestTimeout
from aerobee_client.runtime.fork import PROCESS
from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code, MqError

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

NAMESRV_VARIABLE = "NAMESRV_ADDR"
CALL_TIMEOUT_S = 3.0
NEXT_S = 0.3  # without an answer, until the next name server is asked too
MAX_PORT = 65_535
# Of a URL, or of several addresses with the separator of other systems.
_NOT_OF_A_HOST = frozenset(",/ ")


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
        if (
            not host
            or _NOT_OF_A_HOST & set(host)
            or not (port.isascii() and port.isdigit())
            or int(port) > MAX_PORT
        ):
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
        """The response of the first that answers. One that hangs, or whose machine is lost, keeps
        its time of CALL_TIMEOUT_S, and the next one is asked beside it after NEXT_S. Raises
        NamesrvUnreachable, a refusal, or ILLEGAL_OPERATION in a forked child."""
        PROCESS.check()  # whose loop starts no task
        count = len(self.addresses)
        others = iter([(self._current + step) % count for step in range(count)])
        asked: dict[asyncio.Task[R], int] = {}
        answers = _Answers()
        try:
            while True:
                index = next(others, None)
                if index is not None:
                    calling = self._transport.call(
                        self.addresses[index], rpc, request, timeout_s=CALL_TIMEOUT_S
                    )
                    asked[asyncio.create_task(calling)] = index
                if not asked:
                    raise answers.refusal or NamesrvUnreachable(self.addresses, answers.reason)
                wait_s = None if index is None else NEXT_S
                done, _ = await asyncio.wait(
                    asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
                )
                for call in done:
                    answered_by = asked.pop(call)
                    if answers.is_one(call):
                        self._current = answered_by
                        return call.result()
        finally:
            for call in asked:
                call.cancel()

    async def call_each(self, rpc: Rpc[Q, R], request: Q) -> list[R]:
        """Calls every name server, for changes: they share nothing. Raises as soon as one fails."""
        return [
            await self._transport.call(address, rpc, request, timeout_s=CALL_TIMEOUT_S)
            for address in self.addresses
        ]


class _Answers:
    """What name servers said that did not answer a call: why, and that there is no such topic."""

    def __init__(self) -> None:
        self.reason = ""
        self.refusal: MqError | None = None

    def is_one(self, call: asyncio.Task[R]) -> bool:
        """Whether this one did. Raises what no other would answer otherwise."""
        error = call.exception()
        if error is None:
            return True
        if isinstance(error, (BrokerUnreachable, RequestTimeout)):
            self.reason = error.message
        elif isinstance(error, MqError) and error.code is Code.TOPIC_NOT_EXIST:
            if self.refusal is None or error.retryable:
                self.refusal = error
        else:
            raise error
        return False
