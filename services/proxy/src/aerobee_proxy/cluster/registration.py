"""Register this process with every name server, by one stream to each that lasts as long.

If the process dies, the name servers notice it at once. `leave` says that it stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

import structlog
from aerobee.namesrv.v1.namesrv_pb2 import RegisterProxyRequest, UnregisterProxyRequest

from aerobee_cluster.name_servers import hold_each
from aerobee_cluster.transport import Transport
from aerobee_wire.backoff import Backoff
from aerobee_wire.rpcs import REGISTER_PROXY, UNREGISTER_PROXY
from aerobee_wire.status import Code, MqError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
UPGRADE_PAUSE_S = 60.0  # for a name server of an earlier version
LEAVE_TIMEOUT_S = 1.0


class Registration:
    """Keeps this process registered.

    `process` returns what the name servers get. It is called when a stream opens, which is after
    the port is bound.
    """

    def __init__(
        self,
        transport: Transport,
        namesrvs: Sequence[str],
        process: Callable[[], RegisterProxyRequest],
    ) -> None:
        self._transport = transport
        self._namesrvs = namesrvs
        self._process = process
        self._leaving = False

    async def run(self) -> None:
        """Hold a stream to each name server until cancelled. After `leave`, open no other one."""
        await hold_each(self._namesrvs, self._hold, self._transport.drop)

    async def leave(self) -> None:
        """Unregister this process, because it stops. Ignore those that do not answer."""
        self._leaving = True  # a stream that opens later would end without a word
        process = self._process()
        request = UnregisterProxyRequest(name=process.name, process_id=process.process_id)
        namesrvs = tuple(self._namesrvs)
        answers = await asyncio.gather(
            *(
                self._transport.call(namesrv, UNREGISTER_PROXY, request, timeout_s=LEAVE_TIMEOUT_S)
                for namesrv in namesrvs
            ),
            return_exceptions=True,
        )
        for namesrv, answer in zip(namesrvs, answers, strict=True):
            if isinstance(answer, BaseException):
                structlog.get_logger().info(
                    "proxy_not_unregistered", namesrv=namesrv, reason=str(answer)
                )

    async def _hold(self, namesrv: str) -> None:
        backoff, is_lost = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), False
        while not self._leaving:
            reason, pause_s = "it ended the stream", None
            try:
                stream = self._transport.stream(namesrv, REGISTER_PROXY, self._process())
                async with aclosing(stream) as answers:
                    async for _ in answers:
                        backoff.reset()
                        is_lost = False
            except MqError as error:
                reason = error.message
                if error.code is Code.REQUEST_CODE_NOT_SUPPORTED:
                    pause_s = UPGRADE_PAUSE_S
            if not is_lost:  # a name server that stays down is logged once
                structlog.get_logger().info("registration_lost", namesrv=namesrv, reason=reason)
            is_lost = True
            await asyncio.sleep(backoff.next_s() if pause_s is None else pause_s)
