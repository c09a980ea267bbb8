"""Make the store of a replica known to the coordinator when its process starts.

    the coordinator's record of this store    the replica
    none, or older than the disk              raises its generation, and is enrolled
    newer than the disk                       its disk is an older copy: the store gets another id,
                                              so the replica is in no in-sync set, and is enrolled

The replica stores its generation durably before it sends it to the coordinator. So a crash between
the two steps leaves a disk that is newer than the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from aerobee_broker.replication.election.coordinators.coordinator import (
    Coordinator,
    CoordinatorAway,
    CoordinatorDamaged,
    StoreOpenedElsewhere,
    StoreRecord,
)
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import Reach
from aerobee_broker.replication.role.replica_store import ReplicaStore

AGAIN_S = 0.2  # seconds after the coordinator did not answer
TWIN_S = 2.0  # seconds after another process was found with a copy of this store


class Enrollment:
    """Enroll the store of this replica at the coordinator.

    `older_than` is None, or, if the disk is an older copy, how far the log went by the
    coordinator's record. `is_reachable` is True if the coordinator answered the last call.
    """

    def __init__(
        self, own: ReplicaStore, make_coordinator: Callable[[Replica], Coordinator]
    ) -> None:
        self.older_than: Reach | None = None
        self.is_reachable = True
        self.trouble = ""
        self._own = own
        self._make_coordinator = make_coordinator

    async def enrolled(self) -> Coordinator:
        """Return a coordinator that has recorded this start. Retry until that succeeds."""
        while True:
            coordinator = self._make_coordinator(self._own.replica)
            pause_s, trouble = AGAIN_S, ""
            try:
                record = await coordinator.recorded()
                if self._is_older_than(record):
                    await self._become_a_new_replica(record)
                    continue
                await coordinator.enroll(await self._own.raise_generation(record.generation))
            except (CoordinatorAway, CoordinatorDamaged, OSError) as error:
                trouble = str(error)
            except StoreOpenedElsewhere as error:
                pause_s, trouble = TWIN_S, str(error)
            self.is_reachable = not trouble
            if not trouble:
                self.trouble = ""
                return coordinator
            if trouble != self.trouble:
                structlog.get_logger().warning("store_not_enrolled", reason=trouble)
            self.trouble = trouble
            await asyncio.sleep(pause_s)

    def _is_older_than(self, record: StoreRecord) -> bool:
        generation = self._own.enrollment.generation
        return generation < record.generation or self._own.recorded_reach < record.reach

    async def _become_a_new_replica(self, record: StoreRecord) -> None:
        own = self._own
        before, reach, generation = own.replica, own.recorded_reach, own.enrollment.generation
        self.older_than = record.reach
        await own.renew_identity()
        structlog.get_logger().error(
            "store_went_back",
            replica=str(before),
            epoch=reach.epoch,
            end=reach.end,
            generation=generation,
            known_epoch=record.reach.epoch,
            known_end=record.reach.end,
            known_generation=record.generation,
            now=str(own.replica),
            advice="this disk is an older copy: the replica copies what it lacks from its master",
        )
