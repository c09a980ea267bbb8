"""Implement promotion and handover, which are common to all members of a group."""

from __future__ import annotations

import asyncio

import structlog

from aerobee_broker.replication.errors import NotPromoted
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.role.role_runner import RoleRunner
from aerobee_broker.replication.rpc.replica import Promotion, ReplicaCalls
from aerobee_chassis.lifecycle import Component
from aerobee_wire.status import MqError

REOPEN_S = 1.0  # between two attempts to open a store
PROMOTED_S = 30.0  # seconds: a new master serves after it has restored the delivery state


class Member(Component):
    """Take part in a broker group. `start` raises MqError and OSError."""

    def __init__(self, roles: RoleRunner, calls: ReplicaCalls) -> None:
        """Create the member.

        `calls` sends requests to the other replicas, and is closed with this member.
        """
        self.calls = calls
        self._roles = roles
        self._promoting = asyncio.Lock()

    async def stop(self) -> None:
        await self.calls.close()

    @property
    def coordinator_reachable(self) -> bool | None:
        """Return whether the coordinator answers, or None if the group has no coordinator."""
        return None

    @property
    def set_at_coordinator(self) -> frozenset[int]:
        """Return the replica ids of the in-sync set at the coordinator, for `ReplicaStatus`."""
        return frozenset()

    @property
    def claimed_epoch(self) -> int:
        """Return the epoch that this replica was elected for and does not serve yet, or 0."""
        return 0

    @property
    def waits_because(self) -> str:
        """Return what this replica waits for and which action is safe, or "" if it does not wait.

        It waits if it has no role, or if it is a master whose state the coordinator has lost.
        """
        return ""

    async def promote(self, *, unclean: bool) -> Promotion:
        """Make this replica master, and return when it serves clients.

        Raises NotElectable, NotPromoted, the errors of the master's handover, and ReplicaRefused if
        the copy of this replica's store is incomplete.
        """
        raise NotImplementedError

    async def note_epoch(self, epoch: int) -> LogDescription:
        """Record `epoch`, so that this replica takes part in no lower epoch.

        Raises NotElectable if a coordinator decides which replica is master. Raises MasterOutdated
        if this replica knows a higher epoch, EpochNotBelieved if the group cannot have reached
        `epoch`, and EpochNotNoted if its disk is full or fails.
        """
        raise NotImplementedError

    async def until_open(self) -> None:
        """Reopen the store, and retry until it opens.

        Without its store this replica takes no role and does not stand for election.
        """
        logged = ""
        while True:
            try:
                await self._roles.own.reopen()
                return
            except (MqError, OSError) as error:
                if str(error) != logged:
                    structlog.get_logger().error("store_not_opened", reason=str(error))
                logged = str(error)
            await asyncio.sleep(REOPEN_S)

    async def hand_over(self, epoch: int, successor: Replica) -> int:
        """Hand over the mastership to `successor`, and return the end of the log.

        Raises NotServed if this replica is not master, and the errors of `MasterRole.hand_over`.
        """
        master = self._roles.master
        if master is None:
            raise self._roles.refusal()
        return await master.hand_over(epoch, successor)

    def as_master(self) -> Promotion | None:
        """Return a `Promotion` if this replica is master already, or None if it is not."""
        if self._roles.master is None:
            return None
        return Promotion(self._roles.epoch, was_master=True)

    def check_finished(self) -> None:
        """Check that this replica has a complete store. Raises ReplicaRefused, NotServed."""
        if not self._roles.own.is_open:
            raise self._roles.refusal()
        self._roles.own.check_finished()

    async def until_master(self, epoch: int) -> None:
        """Wait until this replica serves as master of `epoch`. Raises NotPromoted."""
        try:
            async with asyncio.timeout(PROMOTED_S):
                await self._roles.wait_for_mastership(epoch)
        except TimeoutError:
            raise NotPromoted(
                f"it was to be master of epoch {epoch}, and does not serve after {PROMOTED_S:.0f} "
                "s; its log says why"
            ) from None
