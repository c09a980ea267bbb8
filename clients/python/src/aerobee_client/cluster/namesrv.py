"""Call name servers, and use the answer of the first one that responds.

Name servers do not share data, so a name server that has just started may not know every topic. The
error TOPIC_NOT_EXIST therefore counts only if all name servers that answer report it. The error is
retryable if one of them has seen a broker of the topic disconnect.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from aerobee_client.errors import BrokerUnreachable, NamesrvUnreachable, RequestTimeout
from aerobee_client.runtime.fork import PROCESS
from aerobee_cluster.transport import Transport
from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code, MqError

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

NAMESRV_VARIABLE = "NAMESRV_ADDR"
CALL_TIMEOUT_S = 3.0
NEXT_S = 0.3  # the wait for an answer before the next name server is asked too
MAX_PORT = 65_535
# A host with one of these characters is a URL, or a list with a wrong separator.
_NOT_OF_A_HOST = frozenset(",/ ")


def namesrv_addresses(namesrv: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the name server addresses from a list, or from the text "host:port;host:port".

    None stands for the text in the environment variable NAMESRV_ADDR. Raises MqError with the code
    INVALID_PARAMETER if no address is given or if an address is not "host:port".
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
    """Calls name servers. It starts with a random one, and then prefers the last that answered."""

    def __init__(self, transport: Transport, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._transport = transport
        self._current = random.randrange(len(self.addresses))

    async def call(self, rpc: Rpc[Q, R], request: Q) -> R:
        """Return the response of the first name server that answers.

        If a name server does not answer within NEXT_S, the next one is asked in parallel. Each name
        server has CALL_TIMEOUT_S to answer.

        Raises:
            NamesrvUnreachable: If no name server answers.
            MqError: If a name server refuses the request, or with the code ILLEGAL_OPERATION in a
                forked child.
        """
        PROCESS.check()  # in a forked child, the loop would not start a task
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
        """Call every name server, one after the other, and return their responses.

        Use it for changes, because name servers do not share data. Raises the first failure.
        """
        return [
            await self._transport.call(address, rpc, request, timeout_s=CALL_TIMEOUT_S)
            for address in self.addresses
        ]


class _Answers:
    """Collects the failures of name servers during one call.

    `reason` is the text of the last connection failure or timeout. `refusal` is the TOPIC_NOT_EXIST
    error that a name server returned, or None.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.refusal: MqError | None = None

    def is_one(self, call: asyncio.Task[R]) -> bool:
        """Return whether a call succeeded, and record its failure.

        Raises an error that other name servers would return too.
        """
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
