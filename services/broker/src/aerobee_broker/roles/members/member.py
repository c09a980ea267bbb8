"""What members of a group have in common, whoever decides: they are promoted, and hand over."""

from __future__ import annotations

import asyncio

import structlog

from aerobee_broker.replication.errors import NotPromoted
from aerobee_broker.replication.handshake import LogDescription
from aerobee_broker.replication.identity import Replica
from aerobee_broker.roles.roles import Roles
from aerobee_broker.rpc.replication.replica import Promotion, ReplicaCalls
from aerobee_chassis.lifecycle import Component
from aerobee_wire.status import MqError

REOPEN_S = 1.0  # between two attempts to open a store
PROMOTED_S = 30.0  # a new master serves after it has restored what is delivered


class Member(Component):
    """Of a broker group. Raises MqError, OSError."""

    def __init__(self, roles: Roles, calls: ReplicaCalls) -> None:
        """`calls`: to the other replicas, closed with this one."""
        self.calls = calls
        self._roles = roles
        self._promoting = asyncio.Lock()

    async def stop(self) -> None:
        await self.calls.close()

    @property
    def coordinator_reachable(self) -> bool | None:
        """None: nobody outside of the group decides."""
        return None

    @property
    def set_at_coordinator(self) -> frozenset[int]:
        """As `ReplicaStatus` has it."""
        return frozenset()

    @property
    def waits_because(self) -> str:
        """Why this replica has no role, and what is safe to do; "" if it has one."""
        return ""

    async def promote(self, *, unclean: bool) -> Promotion:
        """Returns once this replica serves as master. Raises NotElectable, NotPromoted,
        ReplicaRefused (it is unfinished), what the master raises that hands over."""
        raise NotImplementedError

    async def note_epoch(self, epoch: int) -> LogDescription:
        """This replica takes part in no lower epoch from now on. Raises NotElectable where it does
        not decide that, MasterOutdated where it knows of a higher one, EpochNotNoted: its disk is
        full, or fails."""
        raise NotImplementedError

    async def until_open(self) -> None:
        """Opens the store again, however often that fails: without it this replica takes no role,
        and stands for no election."""
        told = ""
        while True:
            try:
                await self._roles.own.reopen()
                return
            except (MqError, OSError) as error:
                if str(error) != told:
                    structlog.get_logger().error("store_not_opened", reason=str(error))
                told = str(error)
            await asyncio.sleep(REOPEN_S)

    async def hand_over(self, epoch: int, successor: Replica) -> int:
        """Raises NotServed: this is no master; what `MasterRole.hand_over` raises."""
        master = self._roles.master
        if master is None:
            raise self._roles.refusal()
        return await master.hand_over(epoch, successor)

    def as_master(self) -> Promotion | None:
        """Where this replica is master already."""
        if self._roles.master is None:
            return None
        return Promotion(self._roles.epoch, was_master=True)

    def check_finished(self) -> None:
        """Raises ReplicaRefused, NotServed."""
        if not self._roles.own.is_open:
            raise self._roles.refusal()
        self._roles.own.check_finished()

    async def until_master(self, epoch: int) -> None:
        """Raises NotPromoted."""
        try:
            async with asyncio.timeout(PROMOTED_S):
                await self._roles.until_leading(epoch)
        except TimeoutError:
            raise NotPromoted(
                f"it was to be master of epoch {epoch}, and does not serve after {PROMOTED_S:.0f} "
                "s; its log says why"
            ) from None
