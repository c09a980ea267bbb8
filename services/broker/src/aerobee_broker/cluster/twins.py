"""Detect another process with the number of this broker, and stop the second process.

Name servers reject the process that registers second. A name server needs up to 90 s to notice that
the machine of a process is lost (`KEEPALIVE_S` of the chassis's listener). So this broker calls the
other process itself. If that process answers, this broker is the second one, and stops. If it does
not answer, this broker waits until it is registered. A process that was registered before stops
only for a process that started earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from aerobee.broker.v1 import admin_pb2

from aerobee_broker.cluster.identity import Identity
from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.caller import Caller
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError

# After this time, a process that was killed or is stopping no longer answers.
PATIENCE_MS = 10_000
ANSWER_S = 3.0


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that a name server has registered.

    `store_id` is "" if the process has no store id. `start_timestamp_ms` is a time of that
    process's clock.
    """

    address: str
    store_id: str
    start_timestamp_ms: int


class BrokerIdInUse(MqError):
    def __init__(self, identity: Identity, holder: Holder) -> None:
        store = f" with the store {holder.store_id}" if holder.store_id else ""
        super().__init__(
            Code.ILLEGAL_OPERATION,
            f"broker {identity.broker_name} with brokerId {identity.number} runs at "
            f"{holder.address}{store} already: give this one another brokerName or brokerId, or "
            "stop the other one",
            about="brokerId",
        )


class Twins:
    """Handle the registrations and rejections that name servers report. `close` closes `caller`."""

    def __init__(
        self,
        identity: Identity,
        clock: Clock,
        caller: Caller,
        stop: Callable[[BrokerIdInUse], None],
    ) -> None:
        """Create the object. `stop` is called with an error that must end the process."""
        self._identity = identity
        self._clock = clock
        self._caller = caller
        self._stop = stop
        # Name servers that have registered this process at any time.
        self._registered: set[str] = set()
        self._rejected_ms: dict[str, int] = {}  # since when a name server rejects it
        self._waits: set[str] = set()  # name servers whose holder does not answer; for the log

    def registered(self, namesrv: str) -> None:
        """Record that this name server has registered this process."""
        self._registered.add(namesrv)
        self._rejected_ms.pop(namesrv, None)
        self._waits.discard(namesrv)

    async def rejected(self, namesrv: str, holder: Holder) -> None:
        """Record that this name server rejects this process because of `holder`.

        End this process if it is the second one and the other process answers.
        """
        now_ms = self._clock.monotonic_ms()
        if namesrv not in self._rejected_ms:
            self._rejected_ms[namesrv] = now_ms
            structlog.get_logger().error(
                "broker_id_in_use",
                namesrv=namesrv,
                broker_id=self._identity.number,
                other_address=holder.address,
                other_store_id=holder.store_id,
            )
        if now_ms - self._rejected_ms[namesrv] < PATIENCE_MS:
            return
        if not self._came_second(holder):
            return
        if await self._answers(holder.address):
            self._stop(BrokerIdInUse(self._identity, holder))
        elif namesrv not in self._waits:
            self._waits.add(namesrv)
            structlog.get_logger().warning(
                "other_broker_silent",
                namesrv=namesrv,
                other_address=holder.address,
                then="waiting until the name server notices that it is gone",
            )

    def _came_second(self, holder: Holder) -> bool:
        """Return whether this process is the second one, which must stop.

        A process that a name server has registered may be the one that clients use. So it stops
        only for a process that started earlier. Both processes compare the same two start times. So
        at most one of them stops, even if their clocks differ.
        """
        own_ms = self._identity.start_timestamp_ms
        return not self._registered or holder.start_timestamp_ms < own_ms

    async def _answers(self, address: str) -> bool:
        """Return whether the other process answers.

        An error counts as an answer, because a replica that is not master returns one.
        """
        request = admin_pb2.GetBrokerStatusRequest()
        try:
            status = await self._caller.call(
                address, rpcs.GET_BROKER_STATUS, request, timeout_s=ANSWER_S
            )
        except MqError as error:
            return error.code is not Code.BROKER_UNREACHABLE
        return status.broker_name == self._identity.broker_name

    async def close(self) -> None:
        await self._caller.close()
