"""Call name servers. The first one that answers is used.

Name servers do not share data. A name server that has just started may not know a topic yet that
another one knows. TOPIC_NOT_EXIST therefore counts only if all name servers that answer report it.
This error is retryable if one of them has seen a broker of the topic disconnect.
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
from aerobee_cluster.name_servers import places_of
from aerobee_cluster.transport import Transport
from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code, MqError

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

NAMESRV_VARIABLE = "NAMESRV_ADDR"
CALL_TIMEOUT_S = 3.0
NEXT_S = 0.3  # the wait for an answer before the next name server is called too
MAX_PORT = 65_535
# A host with one of these characters is a URL, or a list with a wrong separator.
_NOT_OF_A_HOST = frozenset(",/ ")


def namesrv_addresses(namesrv: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the addresses in "host:port;host:port" or in a sequence; None means NAMESRV_ADDR.

    Raises MqError with the code INVALID_PARAMETER if there is no address or if one is not
    "host:port".
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
    """Calls name servers. It starts with a random one, and then prefers one that has answered.

    `addresses` are the present ones if they are NameServers.
    """

    def __init__(self, transport: Transport, addresses: Sequence[str]) -> None:
        self.addresses = addresses
        self._transport = transport
        self._current = random.randrange(len(addresses))

    async def present(self) -> Sequence[str]:
        """Return the present addresses. Host names are resolved first, if that is due."""
        return tuple(await places_of(self.addresses))

    async def call(self, rpc: Rpc[Q, R], request: Q) -> R:
        """Return the response of the first name server that answers.

        Each name server has CALL_TIMEOUT_S to answer. After NEXT_S without an answer, the next one
        is called in parallel. Raises NamesrvUnreachable or the refusal of a name server. Raises
        MqError with the code ILLEGAL_OPERATION in a forked child.
        """
        PROCESS.check()  # in a forked child, the loop would not start a task
        addresses = await self.present()
        count = len(addresses)
        others = iter([(self._current + step) % count for step in range(count)])
        asked: dict[asyncio.Task[R], int] = {}
        answers = _Answers()
        try:
            while True:
                index = next(others, None)
                if index is not None:
                    calling = self._transport.call(
                        addresses[index], rpc, request, timeout_s=CALL_TIMEOUT_S
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
                    if answers.has_answered(call):
                        self._current = answered_by
                        return call.result()
        finally:
            for call in asked:
                call.cancel()


class _Answers:
    """The failures of name servers in one call.

    `reason` is the text of the last name server that did not answer. `refusal` is the error
    TOPIC_NOT_EXIST if one reported it.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.refusal: MqError | None = None

    def has_answered(self, call: asyncio.Task[R]) -> bool:
        """Return whether a call to a name server succeeded.

        Raises its error if all name servers would return the same one.
        """
        error = call.exception()
        if error is None:
            return True
        if isinstance(error, BrokerUnreachable):
            self.reason = error.reason
        elif isinstance(error, RequestTimeout):
            self.reason = f"no answer within {error.timeout_s:.3g} s"
        elif isinstance(error, MqError) and error.code is Code.TOPIC_NOT_EXIST:
            if self.refusal is None or error.retryable:
                self.refusal = error
        else:
            raise error
        return False
